# SPDX-License-Identifier: Apache-2.0
"""Design folders: one's own loop to proven RTL in one call, and the verbs on what it leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import bitwright
from bitwright.base.errors import MismatchError, ModelError, RecipeError, RunError
from bitwright.base.figures import Source
from bitwright.base.tools.finder import find
from bitwright.build.implement import read_result
from bitwright.cli import entry
from bitwright.ir import INTEGER, load_graph
from bitwright.pipeline.board_subject import bitstream_of as find_bitstream
from bitwright.pipeline.board_subject import find_subject
from bitwright.pipeline.recipe_hardware import hardware_facts
from bitwright.pipeline.steps.levels import read_inputs, read_levels
from bitwright.pipeline.steps.summary import RECORD
from bitwright.quantize import Policy, apply

QUANT = {"input": "uint4", "weight": "int3", "activation": "uint3"}
HARDWARE = {"target": "ecp5-25k", "target_fps": 20_000}
SMALL = {"lut": 350, "ff": 2000, "dsp": 0, "bram": 4}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(12, 3),
    ).eval()  # fmt: skip


def images(count: int = 8) -> Tensor:
    return torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def normalised(pixels: np.ndarray) -> Tensor:
    """What a loop of one's own does to an image."""
    return (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.1) / 0.7


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> bitwright.BuiltModel:
    """A model that a loop of one's own has trained in few bits."""
    model = apply(network(), Policy.from_dict(QUANT), "train", images())
    assert isinstance(model, nn.Module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images()), torch.arange(8) % 3).backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("own") / "design"
    made = bitwright.build_model(model.eval(), images(), hardware=HARDWARE, out=folder, name="mine")
    with torch.no_grad():
        assert torch.equal(model(images()), made.integers(images()))
    return made


def test_one_call_proves_what_the_loop_has_trained(built: bitwright.BuiltModel) -> None:
    assert built.proof is not None and built.proof.real
    assert built.proof.images == 8 and built.proof.compared_values > 0
    figures = {row.label: row.figure.value for row in built.rows if row.figure is not None}
    cycles = figures["cycles an image, simulated"]
    assert cycles == figures["cycles an image, predicted"] <= 100e6 / 20_000
    assert built.bitstream is None and "RTL = integer graph" in built.report.read_text()
    # The folder's levels and graph give the model's scores.
    graph = load_graph(built.design.folder / "graph.bwg", {"integer": INTEGER})
    found = graph.run(read_inputs(built.design.folder, graph))
    for edge, levels in read_levels(built.design.folder).items():
        assert edge == "inputs" or np.array_equal(levels, found[edge])
    assert np.array_equal(
        np.float32(found["scores"] * built.integers.score_scale), built.integers(images()).numpy()
    )


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert entry.run([*arguments, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_verbs_on_a_folder_of_ones_own(
    built: bitwright.BuiltModel, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = built.design.folder
    found = said(capsys, "diff", str(folder), "--index", "3")
    assert [stage["stage"] for stage in found["stages"]] == ["hardware", "rtl"]
    assert said(capsys, "diff", str(folder), "--until", "graph", code=2)
    stamp = (folder / "simulate" / "key.json").stat().st_mtime_ns
    assert said(capsys, "simulate", str(folder))["proof"]["images"] == 8
    assert (folder / "simulate" / "key.json").stat().st_mtime_ns == stamp  # done before
    found = said(capsys, "simulate", str(folder), "--set", "simulate.images=4")
    assert found["proof"]["images"] == 4 and found["proof"]["real"]
    page = Path(said(capsys, "report", str(folder))["step"]) / "report.html"
    assert "4 real frames" in page.read_text()
    error = said(capsys, "simulate", str(folder), "--data", "x", code=2)["error"]
    assert "--data" in error["message"]
    error = said(capsys, "map", str(folder), "--set", "hardware.fil=0.5", code=2)["error"]
    assert "hardware.fil" in error["where"] and "fill" in error["message"]


@pytest.mark.long
def test_a_bitstream_and_the_simulated_board(
    built: bitwright.BuiltModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find("yosys") is None or find("nextpnr-ecp5") is None or find("ecppack") is None:
        pytest.skip("no Yosys or no nextpnr-ecp5 works here")
    names, hardware = ("a", "b", "c"), {**HARDWARE, "clock_mhz": 25}
    made = bitwright.build_model(
        built.integers, images(), hardware=hardware, out=tmp_path / "d", classes=names,
        implement={"board": "colorlight-i5"}, simulate={"images": 3, "stall_images": 1},
        pixels=normalised,
    )  # fmt: skip
    folder = made.design.folder / "implement"
    assert made.bitstream is not None and made.bitstream.parent == folder
    assert bytes.fromhex("ffffbdb3") in made.bitstream.read_bytes()[:256]
    assert find_bitstream(made.design.folder) == made.bitstream
    figures = {row.label: row.figure for row in made.rows if row.figure is not None}
    assert figures["Fmax"].source is Source.PLACE_AND_ROUTE and figures["Fmax"].value > 25
    result = read_result(folder / "implement.json")
    assert any("Colorlight i5" in note for note in result.notes)  # not the target's own board
    assert {"board_description", "c_host", "c_design"} <= set(result.files)
    assert all((folder / name).is_file() for name in result.files.values())
    assert "BITWRIGHT_CLASSES 3u" in (folder / result.files["c_design"]).read_text()
    stamp = (folder / "key.json").stat().st_mtime_ns
    said(capsys, "implement", str(made.design.folder))
    assert (folder / "key.json").stat().st_mtime_ns == stamp  # done before

    answer = said(capsys, "board", str(made.design.folder), "--simulated", "--count", "2")
    assert answer["compared"] == 2 * 4 and answer["differences"] == 0
    scores = built.integers(images())[:2] / built.integers.score_scale
    found = [image["outputs"]["scores"] for image in answer["images"]]
    assert np.array_equal(np.array(found), np.rint(scores.numpy()))
    classes = [names[int(k)] for k in scores.argmax(1)]
    assert [image["class"] for image in answer["images"]] == classes

    pixels = np.random.default_rng(2).integers(0, 256, (2, 6, 6), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    files = [str(tmp_path / f"{number}.png") for number in range(2)]
    answer = said(capsys, "board", str(made.design.folder), *files, "--simulated")
    reals = torch.stack([normalised(image[..., None]) for image in pixels])
    scores = built.integers(reals) / built.integers.score_scale
    found = [image["outputs"]["scores"] for image in answer["images"]]
    assert np.array_equal(np.array(found), np.rint(scores.numpy())) and answer["differences"] == 0


def test_a_design_folder_on_several_devices(
    built: bitwright.BuiltModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "graph.bwg").write_bytes((built.design.folder / "graph.bwg").read_bytes())
    sections = ("target_fps=null", "target=xc7z020", "devices=2", f"budget={json.dumps(SMALL)}")
    options = [part for text in sections for part in ("--set", f"hardware.{text}")]
    said(capsys, "map", str(tmp_path), *options)
    assert len(list((tmp_path / "map" / "devices").glob("part[0-9]*"))) == 2
    record = json.loads((Path(said(capsys, "report", str(tmp_path))["step"]) / RECORD).read_text())
    assert record["facts"]["devices"] == "2 of xc7z020"
    assert said(capsys, "diff", str(tmp_path), "--until", "hardware")["stages"][0]["first"] is None
    error = said(capsys, "diff", str(tmp_path), code=2)["error"]
    assert "several devices" in error["message"] and "--until hardware" in error["hint"]


def test_a_damaged_memory_image_is_found(built: bitwright.BuiltModel, tmp_path: Path) -> None:
    """The proof can fail: one bit of one weight. The step itself is made again then: only RTL that
    this user has made, as it is, is run.
    """
    from bitwright.pipeline.designs.folder import expected_outputs, open_design
    from bitwright.pipeline.designs.steps import map_design
    from bitwright.pipeline.steps.results import load_result
    from bitwright.pipeline.steps.results_hardware import MapResult
    from bitwright.pipeline.steps.simulate import prove_rtl

    shutil.copytree(built.design.folder, tmp_path / "d")
    design = open_design(tmp_path / "d")
    rtl = tmp_path / "d" / "map" / "rtl"
    image = next(p for p in sorted(rtl.glob("**/*weight*")))
    whole = image.read_text()
    lines = whole.splitlines()
    place = next(k for k, line in enumerate(lines) if line and not line.startswith("/"))
    lines[place] = f"{int(lines[place], 16) ^ 1:0{len(lines[place])}x}"
    image.write_text("\n".join(lines) + "\n")
    mapped, feeds = load_result(MapResult, tmp_path / "d" / "map"), design.frames()
    with pytest.raises(MismatchError):
        prove_rtl(
            rtl, design.graph, feeds, expected_outputs(design.graph, feeds), mapped,
            design.settings.simulate, 0,
        )  # fmt: skip
    map_design(design)
    assert image.read_text() == whole


def test_a_float_model_is_quantized_from_the_images(tmp_path: Path) -> None:
    made = bitwright.build_model(
        network(), images(), quant=QUANT, hardware=HARDWARE, out=tmp_path / "d",
        simulate={"images": 3},
    )  # fmt: skip
    assert made.proof is not None and made.proof.images == 3
    with pytest.raises(RunError, match="a design folder with graph"):
        bitwright.build_model(network(), images(), quant=QUANT, out=tmp_path / "d")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="is no design folder"):
        bitwright.build_model(network(), images(), quant=QUANT, out=tmp_path / "mine", force=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "a float model needs formats"),
        ({"quant": QUANT, "hardware": {"targt": "x"}}, "hardware.targt"),
        ({"quant": QUANT, "hardware": {"blocks": ["a:b"]}}, "need a recipe"),
    ],
)
def test_what_a_call_says_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        bitwright.build_model(network(), images(), out=tmp_path / "d", **changes)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (lambda p: torch.from_numpy(p) / 255, r"gave \(6, 6, 1\) for pixels \(6, 6, 1\)"),
        (lambda p: torch.from_numpy(p).permute(2, 0, 1) / (p.max() + 1.0), "on the pixels around"),
    ],
    ids=["channels last", "by its maximum"],
)
def test_what_cannot_be_a_table_of_pixels(
    built: bitwright.BuiltModel, pixels: Any, message: str, tmp_path: Path
) -> None:
    """Before anything is written."""
    with pytest.raises(ModelError, match=message):
        bitwright.build_model(built.integers, images(), out=tmp_path / "d", pixels=pixels)
    assert not (tmp_path / "d").exists()


def test_an_import_is_a_design_folder(
    built: bitwright.BuiltModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = str(tmp_path / "net.onnx"), str(tmp_path / "in")
    said(capsys, "export", str(built.design.folder), "--out", source)
    options = ["--target", "ecp5-25k", "--fps", "200000", "--clock-mhz", "50", "--simulate", "4"]
    found = said(capsys, "import", source, "--out", out, *options)["hardware"]
    assert found["simulated_frames"] == 4 and found["interval"] <= 250
    assert said(capsys, "diff", out)["stages"][-1]["first"] is None
    assert find_subject(out).design == tmp_path / "in" / "map" / "rtl"
    slow = said(capsys, "map", out, "--set", "hardware.target_fps=1000")["figures"]
    assert slow["cycles an image, predicted"]["value"] > found["interval"]
    assert not (tmp_path / "in" / "simulate").exists()  # it was of another design
    budget = ["--target", "ecp5-25k", "--budget", "lut=3000,dsp=0", "--force"]
    made = said(capsys, "import", source, "--out", out, *budget)["hardware"]
    assert made["resources"]["lut"] <= 3000 and made["resources"]["dsp"] == 0
    fill = ["--target", "ecp5-25k", "--fill", "0.1", "--force"]
    assert (
        said(capsys, "import", source, "--out", out, *fill)["hardware"]["resources"]["lut"] < 2432
    )
    error = said(capsys, "import", source, "--out", out, "--fps", "9", "--force", code=2)["error"]
    assert "target" in error["message"]


def test_what_is_printed_is_for_people(built: bitwright.BuiltModel) -> None:
    """It was every weight and level there is."""
    assert len(repr(built)) < 6000 and "0x" not in repr(built)
    rows = {row.label: str(row.figure) for row in built.rows}
    assert rows["cycles an image, simulated"].endswith(" cycles")


def test_keys_follow_what_files_say_and_which_frames_there_are(
    built: bitwright.BuiltModel, tmp_path: Path
) -> None:
    """Other levels gave the old proof, another folding under the same name the old map."""
    design = built.design
    (edge,) = design.graph.inputs
    assert design.levels is not None
    other = {edge: 15 - design.levels[edge]}
    digests = {replace(design, levels=levels).frames_digest() for levels in (None, other)}
    assert len(digests | {design.frames_digest()}) == 3
    path = tmp_path / "folding.json"
    wanted = design.settings.hardware.model_copy(update={"folding_config_file": path})
    found = []
    for text in ("{}", '{"Defaults": {}}'):
        path.write_text(text)
        found.append(hardware_facts(wanted))
    assert found[0] != found[1]
