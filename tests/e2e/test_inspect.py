# SPDX-License-Identifier: Apache-2.0
"""`bitwright inspect` says what every node becomes, and all that stands in the way at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bitwright.base.errors import RecipeError
from bitwright.cli import entry as cli
from bitwright.cli.options import parse_shape
from bitwright.pipeline.api import inspect_model
from bitwright.pipeline.recipe import load_recipe

OWN = """
import torch
import torch.nn.functional as F
from torch import nn


class Good(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.head = nn.Linear(6, num_classes)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(x + self.deep(x))
        return self.head(x.mean((2, 3)))


class Bad(Good):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.wide = nn.ConvTranspose2d(6, 6, 3, padding=1)

    def forward(self, x):
        x = torch.softmax(self.conv(x), 1)
        x = self.wide(x)
        x = torch.matmul(x, x)
        return self.head(x.mean((2, 3)))


class Branches(Good):
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return super().forward(x)


def broken(num_classes):
    return 1 / 0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's module, of a name that no other test has loaded."""
    (tmp_path / "inspected_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import sys

    sys.modules.pop("inspected_models", None)
    return tmp_path


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of the verb."""
    code = cli.run(["inspect", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def by_node(found: Any) -> dict[str, Any]:
    return {row["node"]: row for row in found["nodes"]}


def test_a_torch_model(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--input-shape", "8x6x3", "--classes", "5")
    code, found = inspect(capsys, "inspected_models:Good", *shape)
    assert code == 0
    assert found["convertible"]
    rows = by_node(found)
    assert rows["conv"]["operations"] == ["conv"]
    assert rows["conv"]["blocks"] == ["pad", "window", "matvec"]
    assert rows["conv"]["shape"] == [8, 6, 6]
    assert "depthwise" in rows["deep"]["blocks"]
    assert rows["add"]["operations"] == ["add"]
    assert rows["mean"]["operations"] == ["sum_pool"]
    assert rows["norm"]["becomes"] == "folded into the activation behind"
    assert rows["head"]["shape"] == [5]
    # Two activations; quantizers behind the depthwise layer for the sum, and behind the mean.
    thresholds = [r for r in found["nodes"] if r["operations"] == ["threshold"]]
    assert [r["bits"] for r in thresholds] == [4] * 4
    assert [r["type"] for r in thresholds].count("inserted") == 2
    line = OWN.splitlines().index("        x = F.relu(x + self.deep(x))") + 1
    assert rows["add"]["line"] == f"{own / 'inspected_models.py'}:{line}"


def test_every_problem_at_once_with_its_line(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = inspect(
        capsys, "inspected_models:Bad", "--input-shape", "8x8x3", "--classes", "5"
    )
    assert code == 3
    assert not found["convertible"]
    rows = by_node(found)
    lines = OWN.splitlines()
    for node, text in (
        ("softmax", "x = torch.softmax"),
        ("wide", "x = self.wide(x)"),
        ("matmul", "x = torch.matmul"),
    ):
        number = next(i for i, line in enumerate(lines, 1) if text in line)
        assert rows[node]["problem"]
        assert rows[node]["advice"]
        assert rows[node]["line"] == f"{own / 'inspected_models.py'}:{number}"
    assert len(found["problems"]) == 3
    assert rows["conv"]["problem"] == ""


def test_the_table_says_it_too(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--input-shape", "8x8x3", "--classes", "5")
    assert cli.run(["inspect", "inspected_models:Bad", *shape]) == 3
    said = capsys.readouterr().out
    assert "3 problems in inspected_models:Bad" in said
    assert "softmax has no few-bit form" in said
    assert cli.run(["inspect", "inspected_models:Good", *shape]) == 0
    assert "every node can be converted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("inspected_models:Branches", "cannot be traced"),
        ("inspected_models:broken", "division by zero"),
        ("inspected_models:nothing", "nothing"),
        ("no_such_package:thing", "no_such_package"),
    ],
)
def test_models_that_fail_before_they_can_be_judged(
    own: Path, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    code = cli.run(["inspect", model, "--input-shape", "8x8x3", "--classes", "5"])
    told = capsys.readouterr()
    assert code in (2, 3)
    assert said in told.out + told.err
    assert "Traceback" not in told.out + told.err


def test_a_policy_that_does_not_fit(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bipolar activations cannot be padded with zeros: the layers are named."""
    shape = ("--input-shape", "8x8x3", "--classes", "5", "--activation", "bipolar")
    code, found = inspect(capsys, "inspected_models:Good", *shape)
    assert code == 3
    assert any("deep" in p["problem"] for p in found["problems"])


def test_recipes_and_the_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = inspect(capsys, "digits")
    assert code == 0
    assert by_node(found)["conv1"]["blocks"] == ["pad", "window", "matvec"]
    again = inspect_model(load_recipe("digits")).to_json()
    assert json.loads(json.dumps(again)) == found
    assert cli.run(["inspect", "digits_cnn"]) == 2
    assert "--input-shape" in capsys.readouterr().err
    assert cli.run(["inspect", "no-such-recipe"]) == 2


def onnx_file(path: Path, *ops: str) -> Path:
    """A chain of operators behind a quantizer."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    one = numpy_helper.from_array(np.array(1.0, np.float32), "one")
    zero = numpy_helper.from_array(np.array(0.0, np.float32), "zero")
    bits = numpy_helper.from_array(np.array(4.0, np.float32), "bits")
    attrs = {
        "signed": 1,
        "narrow": 0,
        "rounding_mode": "ROUND",
        "domain": "qonnx.custom_op.general",
    }
    nodes = [helper.make_node("Quant", ["x", "one", "zero", "bits"], ["t0"], name="first", **attrs)]
    nodes.append(
        helper.make_node("Quant", ["w", "one", "zero", "bits"], ["wq"], name="wq", **attrs)
    )
    edge = "t0"
    for number, op in enumerate(ops, 1):
        inputs = [edge, "wq"] if op == "MatMul" else [edge]
        edge = f"t{number}"
        nodes.append(helper.make_node(op, inputs, [edge], name=f"{op}_{number}"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info(edge, TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(nodes, "g", [x], [y], [weight, one, zero, bits])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("qonnx.custom_op.general", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = inspect(capsys, str(onnx_file(tmp_path / "good.onnx", "MatMul")))
    assert code == 0
    assert by_node(found)["MatMul_1"]["blocks"] == ["matvec"]


def test_every_problem_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is behind the first, and still found; what is right but behind is not judged."""
    path = onnx_file(tmp_path / "bad.onnx", "MatMul", "LSTM", "MatMul", "Loop")
    code, found = inspect(capsys, str(path))
    assert code == 3
    assert [p["where"] for p in found["problems"]] == ["node LSTM_2 (LSTM)", "node Loop_4 (Loop)"]
    assert all(p["advice"] for p in found["problems"])
    assert by_node(found)["MatMul_3"]["becomes"] == "not judged: behind LSTM_2"


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07"])
def test_broken_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    for name in (path, tmp_path / "missing.onnx"):
        code = cli.run(["inspect", str(name)])
        told = capsys.readouterr()
        assert code == 3
        assert name.name in told.out
        assert "Traceback" not in told.out + told.err


@pytest.mark.parametrize("text", ["8x8", "8x8x0", "ax8x3", "8x8x3x1", "-8x8x3", "", "99999x1x1"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(RecipeError, match="height x width x channels"):
        parse_shape(text)


def test_shapes() -> None:
    assert parse_shape("160x320x3") == (160, 320, 3)
    assert parse_shape(" (160, 320, 3) ") == (160, 320, 3)
    assert parse_shape(None) is None
