# SPDX-License-Identifier: Apache-2.0
"""`formats compare`: rows are really executed, kept by what they depend on, and add up."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from torch import nn

from bitwright.base.errors import DataError, FormatError, ModelError, RecipeError
from bitwright.base.figures import Measured
from bitwright.data import load_dataset
from bitwright.explore import compare
from bitwright.explore import subject as subjects
from bitwright.explore.compare import CompareRequest, run_compare
from bitwright.explore.fingerprint import model_code
from bitwright.explore.model_sizes import model_size
from bitwright.explore.subject import Subject
from bitwright.explore.variants import METHODS, Variant
from bitwright.models import build_model
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import post_training_quantize
from bitwright.quantize.ptq.methods import parse_methods
from bitwright.train import TrainConfig, evaluate, fit

FORMATS = "int8,int3/uint4,po2_4<zero>,cb16,e4m3,mxfp4,int4/cb16"


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    splits = load_dataset("digits")
    model = build_model("digits_cnn", 10, splits.image_shape)
    fit(
        model,
        splits,
        TrainConfig(epochs=6, batch_size=32, lr=0.01, threads=1),
        run_dir=tmp_path_factory.mktemp("fit"),
    )
    return Subject("digits", model.eval(), splits.train, splits.validation, splits.test)


@pytest.fixture
def found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(subjects, "find_subject", lambda *_, **__: subject)
    return subject


def ask(out: Path, **more: object) -> CompareRequest:
    return CompareRequest("digits", out, formats=FORMATS, images=64, **more)  # type: ignore[arg-type]


def test_every_row_is_measured_and_says_how(found: Subject, tmp_path: Path) -> None:
    result = run_compare(ask(tmp_path / "c"))
    rows = {str(row["format"]): row for row in result.table.rows}
    assert list(rows) == ["float32", "int8", "int3", "po2_4<zero>", "cb16", "e4m3", "mxfp4", "int4"]
    for name in ("int8", "int3", "po2_4<zero>", "cb16", "e4m3"):
        assert rows[name]["arithmetic"] == "exact integers", name
    assert str(rows["mxfp4"]["arithmetic"]).startswith("simulated: ")
    assert "exponents depend on the data" in str(rows["mxfp4"]["arithmetic"])
    assert str(rows["int4"]["arithmetic"]).startswith("not possible: cb16 is fitted to weights")
    assert "accuracy" not in rows["int4"]
    base = rows["float32"]["accuracy"]
    assert isinstance(base, Measured) and base.value > 0.9
    for name in ("int8", "e4m3"):
        accuracy, loss = rows[name]["accuracy"], rows[name]["loss"]
        assert isinstance(accuracy, Measured) and isinstance(loss, Measured)
        assert accuracy.value == pytest.approx(base.value + loss.value)
        assert abs(loss.value) < 0.03
    sizes = [rows[name]["size"] for name in ("float32", "int8", "int3")]
    assert sizes == sorted(sizes, reverse=True)  # type: ignore[type-var]
    assert rows["float32"]["rate"] == 1.0
    assert {p.suffix for p in result.paths.values()} == {".md", ".csv", ".json", ".html"}
    page = result.paths["html"].read_text()
    assert "po2_4&lt;zero&gt;" in page and "po2_4<zero>" not in page


def test_the_integers_of_a_row_are_those_of_the_frozen_network(
    found: Subject, tmp_path: Path
) -> None:
    result = run_compare(CompareRequest("digits", tmp_path, formats="int3/uint4", images=64))
    row = result.table.rows[1]
    policy = Policy.from_dict(
        {
            "input": "uint8",
            "weight": {"format": "int3", "scale": "mse"},
            "activation": {"format": "uint4", "scale": "mse"},
        }
    )
    model, _ = post_training_quantize(found.model, policy, found.train.take(range(64)))
    frozen = apply(model, policy, "freeze", sample_shape=found.sample_shape)
    assert found.test is not None
    accuracy = row["accuracy"]
    assert isinstance(accuracy, Measured)
    assert accuracy.value == evaluate(frozen, found.test).accuracy
    size = model_size(model, sample_shape=found.sample_shape)
    assert row["size"] == -(-size.parameter_bits // 8) and row["memory"] == size.memory_ratio


def test_finished_rows_are_kept_and_others_made(
    found: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompareRequest("digits", tmp_path, formats="int8,po2_4", images=64, limit=100)
    first = run_compare(request)
    made: list[str] = []
    really = compare.make_row

    def counted(subject: Subject, variant: Variant, *more: object, **options: object) -> object:
        made.append(variant.name)
        return really(subject, variant, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compare, "make_row", counted)
    again = run_compare(request)
    assert made == [] and again.table == first.table
    kept = sorted((tmp_path / "rows").iterdir())
    entry = kept[0] / "entry.json"
    entry.write_text(entry.read_text()[:40])  # cut short: made again
    assert run_compare(request).table == first.table
    assert len(made) == 1
    run_compare(CompareRequest("digits", tmp_path, formats="int8,cb4", images=64, limit=100))
    assert made[1:] == ["cb4/uint8"]
    run_compare(CompareRequest("digits", tmp_path, formats="int8", images=64, limit=101))
    assert made[2:] == ["int8/uint8"]


def test_rows_depend_on_the_code_of_the_network_and_of_what_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n        return"
    file, method = tmp_path / "net_of_a_test.py", tmp_path / "method_of_a_test.py"
    file.write_text(f"{text} super().forward(x.flatten(1))\n")
    method.write_text("def mine(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("bitwright.base.plugins.Path.cwd", lambda: tmp_path)
    model = importlib.import_module("net_of_a_test").Net(64, 10)
    splits = load_dataset("digits")

    def key(method: str) -> str:
        shown = Subject("own", model, splits.train, splits.validation, splits.test)
        common = compare._common_key(ask(tmp_path), shown, 2)
        return compare._key(common, Variant("int8", "uint8", method))

    before = [key("naive"), key("calibrate+method_of_a_test:mine")]
    assert before == [key("naive"), key("calibrate+method_of_a_test:mine")]
    method.write_text("def mine(): return 1\n")
    assert key("naive") == before[0] and key("calibrate+method_of_a_test:mine") != before[1]
    file.write_text(f"{text} 2 * super().forward(x.flatten(1))\n")  # the same words in a print
    assert key("naive") != before[0]
    before = [key("naive")]
    model.eval()
    model.factor = 2  # what a layer computes by, and does not show
    assert key("naive") != before[0] and key("naive") == key("naive")
    before = [key("naive")]
    model.options = {"by": [1, 2.5]}
    assert key("naive") != before[0]
    del sys.modules["net_of_a_test"]
    ours = model_code(build_model("resnet20", 10, (32, 32, 3)))
    assert ours.keys() >= {"bitwright.models.resnet"} and all(ours.values())
    assert model_code(nn.Sequential(nn.Linear(2, 2))) == {}


def test_rows_depend_on_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a metric of before stood under the float network's in that of now."""
    metric, recipe = tmp_path / "metric_of_a_test.py", tmp_path / "r.yaml"
    metric.write_text("def right(outputs, labels):\n    return outputs.argmax(1) == labels\n")
    text = "name: r\ndata: {name: digits}\nmodel: {name: digits_cnn}\nquant: {weight: int4}\n"
    recipe.write_text(text + 'task: {name: classification, metric: "metric_of_a_test:right"}\n')
    model = build_model("digits_cnn", 10, (8, 8, 1))

    def key() -> str:
        work = Workspace(load_recipe(str(recipe)))
        monkeypatch.setattr(subjects, "trained_run", lambda place, data: (work, model))
        return compare._common_key(ask(tmp_path), subjects.find_subject(str(tmp_path)), 2)

    before = key()
    assert key() == before
    metric.write_text(metric.read_text().replace("==", "!="))
    changed = key()
    assert changed != before
    recipe.write_text(text + "task: {name: classification}\n")
    assert key() not in (before, changed)


def test_every_word_is_a_list_of_methods() -> None:
    for methods in METHODS.values():
        assert [m.name for m in parse_methods(methods)] == list(methods)


def test_naive_and_careful_methods_differ(found: Subject, tmp_path: Path) -> None:
    tables = [
        run_compare(
            CompareRequest("digits", tmp_path / m, formats="int2/uint4", images=64, method=m)
        ).table
        for m in ("naive", "gptq")
    ]
    naive, careful = (t.rows[1]["accuracy"] for t in tables)
    assert isinstance(naive, Measured) and isinstance(careful, Measured)
    assert careful.value > naive.value


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"method": "magic"}, RecipeError, "unknown method 'magic'"),
        ({"method": "gptq+adaround"}, RecipeError, "both choose"),
        ({"limit": 0}, RecipeError, "0 images to measure on"),
        ({"formats": "int99"}, FormatError, "int99"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_done(
    more: dict[str, object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        run_compare(CompareRequest("nowhere", tmp_path / "c", **more))  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_a_file_in_the_way_is_left_alone(found: Subject, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("mine")
    with pytest.raises(DataError, match="is a file"):
        run_compare(ask(tmp_path / "c"))
    assert (tmp_path / "c").read_text() == "mine"


def test_json_has_the_same_rows(found: Subject, tmp_path: Path) -> None:
    result = run_compare(CompareRequest("digits", tmp_path, formats="int8", images=64, limit=50))
    stored = json.loads(result.paths["json"].read_text())
    assert stored["tables"][0]["rows"] == json.loads(json.dumps(result.to_json()["rows"]))
    assert "--formats int8" in stored["facts"]["command"]


def test_weights_that_are_no_numbers_are_refused(
    found: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = build_model("digits_cnn", 10, (8, 8, 1)).eval()
    next(m for m in broken.modules() if isinstance(m, nn.Conv2d)).weight.data[0] = float("nan")
    sick = Subject("sick", broken, found.train, found.validation, found.test)
    monkeypatch.setattr(subjects, "find_subject", lambda *_, **__: sick)
    with pytest.raises(ModelError, match="NaN"):
        run_compare(CompareRequest("x", tmp_path / "c", formats="int8", images=64, limit=50))
    assert not (tmp_path / "c").exists()
