# SPDX-License-Identifier: Apache-2.0
"""The face matrix on a small network and pictures of nobody: all rows, tables, going on."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.face_protocols import synthetic_protocol

from bitwright.base.errors import DataError, RecipeError
from bitwright.papers.faces.face_densenet import face_densenet
from bitwright.papers.faces.matrix import MatrixRequest, _frequent, parse_halves, run_matrix
from bitwright.papers.faces.networks import Subject, cluster_parameters, converted
from bitwright.papers.faces.recipe import METHODS, load_matrix, rows_of
from bitwright.papers.faces.sweep import ENTRIES, SweepPoint, best_of, parse_entries, run_sweep
from bitwright.papers.faces.tables import Result
from bitwright.pipeline.recipe import find_recipe, list_experiments, load_recipe
from bitwright.train.checkpoint import save_weights

SMALL = """
kind: face-matrix
networks:
  - name: Small
    model: face_densenet
    options: {blocks: [1], growth: 4, bottleneck: 2, stem_width: 6, embedding: 12}
preprocessing: {size: 20, align: false}
sweep: {hi: null}
identities: {people: 4, each: 3}
search: {each: 1, margin: 30}
calibration: 8
clusters: {network: 64, group: 6, layer: 4}
"""


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"blocks": (1,), "growth": 4, "bottleneck": 2, "stem_width": 6, "embedding": 12}
    model = face_densenet((20, 20, 3), **options)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.3, 2)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, a recipe, and an archive like that of ORL, every person a pattern of its own."""
    from PIL import Image

    root = tmp_path_factory.mktemp("faces")
    generator = np.random.default_rng(0)
    with zipfile.ZipFile(root / "orl-faces.zip", "w") as archive:
        for person in range(1, 41):
            pattern = generator.random((7, 6))
            for number in range(1, 11):
                noisy = np.kron(pattern, np.ones((8, 8))) + 0.1 * generator.random((56, 48))
                buffer = io.BytesIO()
                Image.fromarray((noisy / 1.1 * 255).astype(np.uint8)).save(buffer, "PPM")
                archive.writestr(f"s{person}/{number}.pgm", buffer.getvalue())
    (root / "small.yaml").write_text(SMALL, encoding="utf-8")
    save_weights(root / "plain.pt", small())
    torch.save(small().state_dict(), root / "face_densenet.pt")
    return root


@pytest.fixture(scope="module")
def request_(folder: Path) -> MatrixRequest:
    recipe = load_matrix(folder / "small.yaml")
    return MatrixRequest(recipe, folder, folder / "out", data=folder, weights=folder)


@pytest.mark.long
def test_all_rows_and_both_halves(request_: MatrixRequest):
    said: list[str] = []
    files = run_matrix(request_, said.append)
    quantized = sum(method not in ("float", "converted", "e4m3") for _, method in METHODS)
    assert len(said) == len(METHODS) + quantized
    record = json.loads(files["json"].read_text(encoding="utf-8"))
    titles = [table["title"] for table in record["tables"]]
    assert titles[0] == "The matrix" and titles[-1] == "Points lost"
    rows = record["tables"][0]["rows"]
    assert len(rows) == len(METHODS) == 16
    reference = record["tables"][1]["rows"][0]
    assert (reference["converted"], reference["folded"]) == ("0.00", "0.00")
    assert float(reference["error"]) < 1e-4
    folding = record["tables"][2]["rows"][0]
    # The norms behind conv1 and the 1 x 1 convolution merge: 4N; the block's first keeps 2N.
    assert (folding["layers"], folding["parameters"]) == (2, 4 * (6 + 8) + 2 * 6)
    by_method = {row["method"]: row for row in rows}
    assert by_method["k-means a layer, minifloat"]["ours_rate"] > 3
    assert by_method["minifloat"]["ours_rate"] > 3
    before = {p: p.read_bytes() for p in (request_.out / "rows").rglob("*.json")}
    again = run_matrix(request_)
    assert {p: p.read_bytes() for p in (request_.out / "rows").rglob("*.json")} == before
    assert again["csv-the-matrix"].read_text(encoding="utf-8").count("\n") == 17


def test_some_rows_and_one_half(request_: MatrixRequest, tmp_path: Path):
    some = replace(request_, out=tmp_path, only=("folded/kmeans-layer",), halves=("plain",))
    run_matrix(some)
    names = sorted(path.stem for path in (tmp_path / "rows").iterdir())
    assert names == ["small-folded-kmeans-layer-plain", "small-original-float-plain"]
    with pytest.raises(RecipeError, match="no row holds any of nothing"):
        run_matrix(replace(some, only=("nothing",)))
    assert parse_halves(None) == ("plain", "ours")
    with pytest.raises(RecipeError, match="no half 'left'"):
        parse_halves("left")


def test_a_sweep_of_table_sizes(request_: MatrixRequest, tmp_path: Path):
    said: list[str] = []
    request = replace(request_, out=tmp_path)
    files = run_sweep(request, (8, 64, 4096), tell=said.append)
    assert len(said) == 1 + 3 * 2  # 4096 entries are more than the network has parameters
    rows = json.loads(files["json"].read_text(encoding="utf-8"))["tables"][0]["rows"]
    rates = {(row["scope"], row.get("entries")): row["rate"] for row in rows}
    assert rates["one table", 8] > rates["one table", 64] > 1
    assert rates["one table", 64] > rates["a table a layer", 64]
    last = next(r for r in rows if (r["scope"], r.get("entries")) == ("a table a layer", 64))
    assert 0.5 <= last["view1"] <= 1 and last["network"] < 32
    before = {p: p.read_bytes() for p in (tmp_path / "points").rglob("*.json")}
    run_sweep(request, (8, 64, 4096))
    assert {p: p.read_bytes() for p in (tmp_path / "points").rglob("*.json")} == before
    with pytest.raises(RecipeError, match="no network holds any of other"):
        run_sweep(replace(request, only=("other",)), (8,))


def test_the_best_table_size_is_chosen_without_view_2():
    def point(scope: str, entries: int, accuracy: float, view1: float, rate: float) -> SweepPoint:
        return SweepPoint("n", scope, entries, 8, accuracy, 0.01, view1, rate, rate, 1.0)

    points = [
        point("float", 0, 0.9, 0.9, 1.0),
        point("layer", 8, 0.95, 0.88, 10.0),  # good on view 2, not on view 1
        point("layer", 16, 0.7, 0.895, 8.0),
        point("layer", 32, 0.9, 0.9, 6.0),
        point("group", 8, 0.9, 0.5, 10.0),
    ]
    assert best_of(points, 1.0) == {("n", "layer"): points[2]}
    assert best_of(points, 3.0)["n", "layer"] == points[1]


def test_table_sizes_in_words():
    assert parse_entries("all") == ENTRIES == (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    assert parse_entries("16, 512,16") == (16, 512)
    for bad in ("", "1", "8,x", "-8", "5000"):
        with pytest.raises(RecipeError, match="no table size"):
            parse_entries(bad)


def test_missing_weights_and_pictures(request_: MatrixRequest, tmp_path: Path):
    with pytest.raises(DataError, match="no weights for Small"):
        run_matrix(replace(request_, weights=tmp_path, out=tmp_path / "x"))
    with pytest.raises(DataError, match="no such archive"):
        run_matrix(replace(request_, data=tmp_path, out=tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_conversion_keeps_every_value(request_: MatrixRequest, folder: Path):
    from bitwright.papers.faces.protocols import orl_known

    known = orl_known(folder, request_.recipe.preprocessing)
    subject = Subject("Small", small(), known, request_.recipe)
    images = torch.from_numpy(known.data.take(range(6)).reals())
    with torch.no_grad():
        assert torch.allclose(converted(subject)(images), subject.model(images), atol=1e-5)


def test_plain_clusters_share_their_table(request_: MatrixRequest):
    model = small()
    groups = {
        path: "all"
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)
    }
    clustered, count, sets = cluster_parameters(model, 16, groups)
    values = torch.cat(
        [
            tensor.flatten()
            for path in groups
            for tensor in (clustered.get_submodule(path).weight, clustered.get_submodule(path).bias)
        ]
    )
    assert sets == 1 and count == values.numel()
    assert len(values.unique()) == 16
    rounded, _, _ = cluster_parameters(model, 16, groups, "e4m3<finite,flush>")
    weight = rounded.get_submodule("0").weight
    mantissa, _ = torch.frexp(weight[weight != 0].abs())
    assert torch.equal(mantissa * 16, (mantissa * 16).round())


def test_the_recipe_inside_the_package():
    recipe = load_matrix(find_recipe("face-matrix"))
    assert len(rows_of(recipe)) == 32
    assert "face-matrix" in dict(list_experiments())
    with pytest.raises(RecipeError, match="formats matrix"):
        load_recipe("face-matrix")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: face-matrix", "kind: other", "lacks 'kind"),
        ("calibration: 8", "calibration: 0", "calibration"),
        ("clusters: {network: 64", "clusters: {network: 1", r"clusters\.network"),
        ("size: 20", "side: 20", "preprocessing"),
        ("margin: 30", "margin: 300", r"search\.margin"),
    ],
)
def test_bad_recipes(tmp_path: Path, old: str, new: str, message: str):
    path = tmp_path / "bad.yaml"
    path.write_text(SMALL.replace(old, new), encoding="utf-8")
    with pytest.raises(RecipeError, match=message):
        load_matrix(path)


def test_losses_and_significance():
    def result(right: str, folds: tuple[float, ...]) -> Result:
        fields = ("n", "folded", "dfp", "ours", "", folds, right, 0.5, 0.9, 0.0)
        return Result(*fields, 4.0, 4.0, 4.0, 1.0)

    reference, worse = result("1111110000", (0.6, 0.6)), result("1000000000", (0.1, 0.1))
    assert worse.lost(reference) == "50.00"
    assert reference.lost(worse) == "not present"
    assert reference.lost(reference) == "0.00"
    assert worse.p_value(reference) == pytest.approx(2 / 2**5)
    assert reference.p_value(reference) == 1.0
    assert Result.from_json(worse.to_json()) == worse


def test_known_faces_of_lfw_are_none_that_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(SMALL.replace("people: 4, each: 3", "people: 2, each: 2"), encoding="utf-8")
    recipe = load_matrix(path)
    protocol = synthetic_protocol()
    known = _frequent(protocol, recipe)
    rows = np.concatenate([protocol.view2.first, protocol.view2.second])
    assert len(known.people) == 2
    assert not {protocol.faces.keys[row] for row in rows} & set(known.keys)
    with pytest.raises(DataError, match="view 2 does not use"):
        _frequent(replace(protocol, view2=protocol.view1), recipe)
