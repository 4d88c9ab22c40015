# SPDX-License-Identifier: Apache-2.0
"""`bitwright search` and `bitwright ristretto quantize` from the outside."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml
from tests.ristretto_files import quantization_of
from torch import nn

from bitwright.cli.entry import run
from bitwright.data import load_dataset
from bitwright.interop.model_files import save_model
from bitwright.models import build_model
from bitwright.quantize import Policy


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained classifier of digits: as a state dict, and beside it for Caffe."""
    torch.manual_seed(0)
    model, data = build_model("digits_cnn", 10, (8, 8, 1)), load_dataset("digits")
    x, y = torch.from_numpy(data.train.reals()), torch.from_numpy(data.train.labels)
    steps = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(6):
        for rows in torch.randperm(len(x)).split(64):
            steps.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            steps.step()
    folder = tmp_path_factory.mktemp("digits")
    torch.save(model.state_dict(), folder / "digits.pt")
    save_model(model.eval(), "caffe", folder / "digits.prototxt", (8, 8, 1))
    return folder / "digits.pt"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_search_writes_policy_tables_and_plot(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--data", "digits", "--weights", str(weights), "--images", "48", "--out", str(out)]
    few = ["--candidates", "int2,int4,int8", "--activations", "uint4,uint8"]
    assert run(["search", "digits_cnn", "--budget", "drop=5", *options, *few, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert files(out) == [
        "front.svg", "points.csv", "policy.yaml", "search.csv", "search.json", "search.md",
        "sensitivity.csv",
    ]  # fmt: skip
    policy = Policy.from_dict(yaml.safe_load((out / "policy.yaml").read_text())["quant"])
    assert len(policy.rules) > 4
    assert json.loads((out / "search.json").read_text())["best"] == printed["best"]
    with (out / "search.csv").open() as file:
        layers = [row["layer"] for row in csv.DictReader(file)]
    assert layers == ["conv1", "act1", "conv2", "act2", "fc1"]
    root = ElementTree.parse(out / "front.svg").getroot()
    assert root.tag.endswith("svg") and len(list(root.iter())) > 20
    assert printed["final"]["test accuracy"] > 0.8
    assert printed["best"]["accuracy"] >= printed["baseline"] - 0.05


_DIGITS = ["digits_cnn", "--weights", "pretrained", "--data", "digits", "--budget", "drop=1"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing", "--budget", "size=1kB"], 2, "no run directory"),
        (["digits_cnn", "--budget", "size=1kB"], 2, "a model needs data"),
        (["digits_cnn", "--budget", "size=1kB", "--data", "digits"], 2, "no trained weights"),
        (["digits_cnn", "--budget", "size=1kB", "--data", "nowhere"], 2, "--weights"),
        (["digits_cnn", "--budget", "weight=3"], 2, "is no budget"),
        (["digits_cnn", "--budget", "drop=1", "--candidates", "int2,foo"], 2, "unknown format"),
        ([*_DIGITS, "--metric", "top3"], 2, "unknown metric 'top3'"),
        ([*_DIGITS, "--metric", "verification"], 2, "nothing to measure verification with"),
        ([*_DIGITS, "--metric", "no_such_module:f"], 3, "cannot import 'no_such_module'"),
        ([*_DIGITS, "--metric", "os:getcwd"], 3, "os does not lie in"),
        ([*_DIGITS, "--metric", "builtins:id"], 3, "builtins does not lie in"),
    ],
)
def test_search_refuses_with_one_message(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run(["search", *arguments, "--out", str(out)]) == code
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_search_of_an_impossible_budget_writes_nothing(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--data", "digits", "--weights", str(weights), "--images", "8", "--out", str(out)]
    few = ["--candidates", "int4,int8", "--activations", "uint8"]
    assert run(["search", "digits_cnn", "--budget", "size=200B", *options, *few]) == 2
    assert "kB to" in capsys.readouterr().err
    assert not out.exists()
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    options[-1] = str(in_the_way)
    assert run(["search", "digits_cnn", "--budget", "size=2kB", *options, *few]) == 4
    assert in_the_way.read_text() == ""


def test_ristretto_writes_a_quantized_prototxt(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "quantized.prototxt"
    arguments = [
        f"--model={weights.with_suffix('.prototxt')}",
        f"--weights={weights.with_suffix('.caffemodel')}",
        f"--model_quantized={target}",
        "--trimming_mode=dynamic_fixed_point", "--error_margin=3", "--iterations=4",
        "--data=digits",
    ]  # fmt: skip
    assert run(["ristretto", "quantize", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "bw_params" in printed and "{" not in printed.partition("quantization_param")[2]
    assert files(tmp_path) == ["quantized.json", "quantized.md", "quantized.prototxt"]
    report = json.loads((tmp_path / "quantized.json").read_text())
    params = quantization_of(target.read_text())
    assert {n: p.to_dict() for n, p in params.items()} == report["quantization_param"]
    widths = {n: (p.bw_params, p.bw_layer_in) for n, p in params.items()}
    chosen = report["chosen"]
    assert widths["conv1"] == (chosen["conv_params"], chosen["activations"])
    assert widths["fc1"] == (chosen["fc_params"], chosen["activations"])
    assert report["error_margin"] == 3
    assert "32-bit float baseline" in (tmp_path / "quantized.md").read_text()
    target.unlink()
    (tmp_path / "quantized.json").unlink()
    (tmp_path / "quantized.md").write_text("mine")  # it was written over
    assert run(["ristretto", "quantize", *arguments]) == 8
    assert "quantized.md: exists already" in capsys.readouterr().err
    assert (tmp_path / "quantized.md").read_text() == "mine"
    again = [*arguments, "--force", f"--model_quantized={weights.with_suffix('.prototxt')}"]
    assert run(["ristretto", "quantize", *again]) == 2
    assert "the float network itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error_margin": "120"}, "error margin"),
        ({"iterations": "0"}, "iterations"),
        ({"trimming_mode": "shifts"}, "shifts"),
        ({"weights": "gone.caffemodel"}, "gone.caffemodel"),
        ({"model": "cut.prototxt"}, "cut"),
    ],
)
def test_ristretto_refuses_with_one_message(
    changes: dict[str, str],
    words: str,
    weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = weights.with_suffix(".prototxt").read_text()
    (tmp_path / "cut.prototxt").write_text(source[: len(source) // 2])
    options = {
        "model": str(weights.with_suffix(".prototxt")),
        "weights": str(weights.with_suffix(".caffemodel")),
        "model_quantized": "quantized.prototxt",
        "trimming_mode": "minifloat",
        "data": "digits",
    } | changes
    code = run(["ristretto", "quantize", *(f"--{k}={v}" for k, v in options.items())])
    assert code not in (0, 70)
    assert words in capsys.readouterr().err
    assert files(tmp_path) == ["cut.prototxt"]


def test_ristretto_measures_each_operand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "digits_cnn", "--weights", "pretrained", "--data", "digits", "--bits", "4"]
    mode = ["--trimming_mode", "dynamic_fixed_point"]
    assert run(["ristretto", "sensitivity", *given, *mode, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["operand"] for row in rows] == ["in", "out", "params", "all"] * 3
    assert all(row["bits"] == 4 and row["accuracy"] + row["lost"] > 0.9 for row in rows)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "takes 0 positional arguments but 1 was given"),
        ("number", "gave an object of type int"),
    ],
)
def test_a_metric_of_ones_own_that_is_none(
    name: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = f"wrong_metric_{name}"
    (tmp_path / f"{module}.py").write_text(
        "def nothing():\n    pass\n\n\ndef number(subject):\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [*_DIGITS, "--metric", f"{module}:{name}", "--out", str(tmp_path / "out")]
    assert run(["search", *arguments]) == 3
    assert words in capsys.readouterr().err
