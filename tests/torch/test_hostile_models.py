# SPDX-License-Identifier: Apache-2.0
"""Files of models that say what they do not hold, or hold what nothing computes with."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from tests.pace import within
from tests.torch.hostile_files import branches, packed_file, tensor_file, window
from torch import Tensor, nn

from bitwright.base import memory
from bitwright.base.errors import BitwrightError, DataError, ModelError
from bitwright.cli import entry
from bitwright.cli.options import recipe_source
from bitwright.interop.caffe.files import parse_prototxt
from bitwright.interop.caffe.layers import BLOBLESS, READERS
from bitwright.interop.caffe.read import network_of_net
from bitwright.interop.model_files import load_model, load_weights, save_model
from bitwright.interop.network import InputConvention
from bitwright.interop.packed import load_packed, save_packed
from bitwright.interop.packed_model import load_packed_model
from bitwright.models import build_model
from bitwright.models.catalog import ModelSpec
from bitwright.models.memory import Held, passing, without_numbers
from bitwright.models.tensors import load_plain, load_tensors
from bitwright.pipeline.export_network import read_model, read_quantized, trained_run
from bitwright.pipeline.recipe import load_recipe
from bitwright.quantize import Policy, apply
from bitwright.train.checkpoint import save_checkpoint
from bitwright.train.teacher_outputs import read_outputs

QUANT = {"weight": "int4", "activation": "uint4", "input": "uint4"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Weights of dense layers that were made with numbers."""
    found: list[Tensor] = []
    init = nn.Linear.__init__

    def seen(self: nn.Linear, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.weight.device.type != "meta":
            found.append(self.weight)

    monkeypatch.setattr(nn.Linear, "__init__", seen)
    return found


def named(widths: object, shape: object = (4, 4, 1), **more: object) -> dict[str, object]:
    """What a file says of a model of the zoo."""
    model = {"name": "mlp", "options": {"widths": widths, "num_classes": 2}}
    return {"model": model, "input_shape": shape, "input": {}, **more}


@pytest.mark.parametrize(
    ("widths", "said"),
    [
        ([30_000, 30_000], "lacks "),
        ([2] * 2000, "names a model of more than 104 parameters, and holds 1"),
        ([30_000, 30_000, "x"], "must be positive whole numbers"),
    ],
)
def test_a_model_is_compared_before_it_takes_memory(
    widths: list[object], said: str, tmp_path: Path, made: list[Tensor]
) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(tensor_file(named(widths)))
    with pytest.raises(BitwrightError, match=said):
        load_model(path)
    assert not made


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (named([30_000, 30_000]), "hold no so many"),
        (named([2] * 2000), "more than 100 parameters, and holds 0"),
        ({"shapes": {"a": [100_000, 20_000]}, "layers": []}, "hold no so many"),
        ({"shapes": {"a": [-1]}, "layers": []}, "does not say of which model"),
        ({"shapes": {"a": "z"}, "layers": []}, "does not say of which model"),
        ({"shapes": [], "layers": []}, "does not say of which model"),
        (named([2], [8, 8, 1 << 63]), "'input_shape' is larger than any image"),
        (named([2], [float("inf"), 1, 1]), "'input_shape' must be three whole numbers"),
        (named([2]) | {"input": 5}, "'input' must be an object"),
        (named([2]) | {"quant": 5}, "a policy|quant"),
    ],
)
def test_a_packed_file_names_no_more_than_it_holds(
    fields: dict[str, object], said: str, tmp_path: Path, made: list[Tensor]
) -> None:
    about = {"quant": QUANT, "classes": 2, **named([2]), **fields}
    path = tmp_path / "net.bwq"
    path.write_bytes(packed_file({"about": about, "entries": []}))
    with pytest.raises(BitwrightError, match=said):
        load_packed_model(path)
    assert not made or "quant" in fields


def test_what_a_file_holds_is_taken(tmp_path: Path) -> None:
    assert without_numbers(lambda: nn.Linear(2, 3), {}, Held(0, lambda _: None, "x")) is not None
    tensors = {"fc1.weight": torch.ones(2, 2), "fc1.bias": torch.ones(2)}
    with pytest.raises(DataError, match="x: names a model of more than 100 parameters"):
        without_numbers(
            lambda: nn.ModuleList(nn.Linear(1, 1) for _ in range(51)),
            {},
            Held(0, lambda _: None, "x"),
        )
    (tmp_path / "w.safetensors").write_bytes(save(tensors))
    assert set(load_tensors(tmp_path / "w.safetensors")[0]) == set(tensors)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (named([2], [8, 8, 1 << 63]), "'input_shape' is larger than any image"),
        (named([2], [float("inf"), 1, 1]), "'input_shape' must be three whole numbers"),
        (named([2], [4, 4]), "'input_shape' must be three whole numbers"),
        (named([2], None), "'input_shape' must be three whole numbers"),
        (named([2]) | {"input": 5}, "'input' must be an object, found 5"),
        (named([2]) | {"input": {"scale": [1]}}, "'input.scale' and 'input.mean' must be numbers"),
        (named([2]) | {"input": {"mean": [10**400]}}, "'input.scale' and 'input.mean' must be"),
        ({"layers": 5}, "'layers' must be the layers of a network"),
        ({"layers": []}, "'layers' must be the layers of a network"),
        ({"layers": {"version": 1, "layers": 5}}, "'layers', the description of the layers"),
        ({"layers": {"version": 1, "layers": [5]}}, r"'layers\.layers\.0'"),
        ({"layers": {"version": 1, "layers": [{"op": []}]}}, r"'layers\.layers\.0'"),
        (
            {"layers": {"version": 1, "layers": [{"op": "Input", "options": []}]}},
            r"'layers\.layers\.0'",
        ),
    ],
)
def test_fields_of_other_kinds_are_named(facts: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(tensor_file(facts))
    with pytest.raises(DataError, match=said):
        load_model(path)


_PLAIN = torch.zeros(2, 2)
ODD: dict[str, Callable[[], Tensor]] = {
    "quantized": lambda: torch.quantize_per_tensor(_PLAIN, 0.1, 0, torch.qint8),
    "sparse": _PLAIN.to_sparse,
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "without numbers": lambda: torch.zeros(2, 2, device="meta"),
    "float8": lambda: _PLAIN.to(torch.float8_e4m3fn),
    "complex": lambda: _PLAIN.to(torch.complex64),
    "not whole": lambda: torch.zeros(1).expand(2, 2),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of tensors
def test_tensors_that_are_no_plain_numbers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save({"weight": ODD[kind](), "bias": torch.zeros(2)}, path)
    with pytest.raises(DataError, match=rf"no checkpoint of torch: .*({kind}|tensor)"):
        load_weights(nn.Linear(2, 2), path, (1, 1, 2))
    with pytest.raises(DataError, match="no checkpoint of torch"):
        load_plain(path)
    fields = {"schema": 1, "scores": ODD[kind](), "indices": torch.arange(2)}
    save_checkpoint(path, {**fields, "data": "d", "teacher": "t"})
    with pytest.raises(DataError, match="no checkpoint of torch"):
        read_outputs(path)


def test_float8_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(save({"weight": torch.zeros(2, 2).to(torch.float8_e4m3fn)}))
    with pytest.raises(DataError, match=r"'weight' is a tensor of torch\.float8_e4m3fn"):
        load_weights(nn.Linear(2, 2), path, (1, 1, 2))


@pytest.mark.parametrize("key", [1])
def test_names_of_tensors_are_text(key: object, tmp_path: Path) -> None:
    torch.save({key: torch.zeros(2, 2), "bias": torch.zeros(2)}, tmp_path / "net.pt")
    with pytest.raises(DataError, match=re.escape(f"a tensor is called {key!r}")):
        load_weights(nn.Linear(2, 2), tmp_path / "net.pt", (1, 1, 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": torch.zeros(2)}, "has schema"),
        ({"schema": "1"}, "has schema '1'"),
        ({"data": 5}, "must be text"),
        ({"indices": torch.zeros(2)}, r"found torch\.float32 \(2, 3\) and torch\.float32 \(2,\)"),
    ],
)
def test_outputs_of_teachers_field_by_field(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    fields = {"schema": 1, "scores": torch.zeros(2, 3), "indices": torch.arange(2)}
    save_checkpoint(tmp_path / "o.pt", {**fields, "data": "d", "teacher": "t", **change})
    with pytest.raises(DataError, match=said):
        read_outputs(tmp_path / "o.pt")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("count", {"count": None}, "'count' must be a whole number, found None"),
        ("count", {"count": 1 << 70}, "'count' must be a whole number"),
        ("count", {"count": -1}, "'count' must be a whole number"),
        ("count", {"shape": 5}, "has the shape 5, expected"),
        ("format", {"shape": None}, "has the shape None, expected"),
        ("format", {"parts": "x"}, "has no parts"),
    ],
)
def test_entries_of_a_packed_file(
    name: str, change: dict[str, object], said: str, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    model = apply(net, Policy.from_dict(QUANT), "train", torch.rand(2, 1, 4, 4))
    path = tmp_path / "net.bwq"
    save_packed(path, model, {"input": InputConvention().to_json()})
    content = path.read_bytes()
    length = int.from_bytes(content[4:8], "little")
    head = json.loads(content[8 : 8 + length])
    entry = next(entry for entry in head["entries"] if name in entry)
    entry.update(change)
    path.write_bytes(packed_file(head, content[8 + length : -4]))
    with pytest.raises((DataError, ModelError), match=said):
        load_packed(path, model)


@pytest.mark.parametrize("kind", READERS)
def test_layers_of_caffe_that_read_nothing(kind: str) -> None:
    text = f"""name: "n" input: "data" input_shape {{ dim: 1 dim: 1 dim: 4 dim: 4 }}
        layer {{ name: "a" type: "{kind}" top: "a" }}"""
    numbers = {} if kind in BLOBLESS else {"a": [np.zeros(1, np.float32)]}
    with pytest.raises(ModelError, match="layer a: reads no blob"):
        network_of_net(parse_prototxt(text), numbers, {})


def test_layers_with_weights_of_half_precision(tmp_path: Path) -> None:
    """Numpy has no bfloat16; what a file holds of it is read all the same."""
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(2, 2, dtype=torch.bfloat16), "bias": torch.ones(2)}, buffer)
    (tmp_path / "net.pt").write_bytes(buffer.getvalue())
    net = nn.Linear(2, 2)
    load_weights(net, tmp_path / "net.pt", (1, 1, 2))
    assert torch.equal(net.weight, torch.ones(2, 2))


#: A small network for images of any size.
SMALL = {"blocks": [1], "widths": [4], "num_classes": 2}


def test_the_size_of_an_image_that_only_a_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one image takes is found out before it is made; who names the size may have it."""
    path, spec = tmp_path / "net.safetensors", ModelSpec(name="resnet20", options=SMALL)
    save_model(build_model(spec, 2, (16, 16, 3)), "safetensors", path, (8000, 8000, 3), spec=spec)
    zeros = torch.zeros

    def small(*size: Any, **more: Any) -> Tensor:
        assert math.prod(torch.empty(*size, device="meta").shape) < 1000, "an image was made"
        return zeros(*size, **more)

    monkeypatch.setattr(torch, "zeros", small)
    with pytest.raises(ModelError, match=r"net\.safetensors: takes .* GiB of memory for one image"):
        load_model(path)
    loaded = load_model(path, input_shape=(2000, 3000, 3))
    assert loaded.model.sample_shape == (3, 2000, 3000)


@pytest.mark.parametrize("kind", ["layers", "packed"])
def test_layers_that_hold_more_at_a_time_than_each(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_OF_A_FILE", 1 << 20)
    facts, load = branches(100, 50), load_model  # each 40 kB
    path = tmp_path / "net.safetensors"
    content = tensor_file(facts)
    if kind == "packed":
        about = {"quant": QUANT, "classes": 1, "input_shape": [100, 100, 1], "input": {}, **facts}
        content, load = packed_file({"about": about | {"shapes": {}}, "entries": []}), _packed
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"takes 2\.0 MiB of memory for one image .*1\.0 MiB are"):
        load(path)
    monkeypatch.setattr(memory, "MOST_OF_A_FILE", 3 << 20)
    if kind == "layers":
        load(path)
        monkeypatch.setattr(memory, "MOST_OF_A_FILE", 1 << 20)
        load_model(path, input_shape=(100, 100, 1))


@pytest.mark.parametrize("kind", ["layers", "packed"])
def test_what_torch_does_in_one_call_ends(kind: str, tmp_path: Path) -> None:
    """A layer is one call, in which no bound of time and no Ctrl-C is noticed."""
    path = tmp_path / "net.safetensors"
    said = r"net\.safetensors: takes 2[0-9.]* thousand million operations .*; 20\.0 are allowed"
    facts = window(1000, 200)  # half a minute; what nobody can wait for is as small a file
    if kind == "packed":
        about = {"quant": QUANT, "classes": 1, "input_shape": [1000, 1000, 1], "input": {}, **facts}
        path.write_bytes(packed_file({"about": about | {"shapes": {}}, "entries": []}))
        with pytest.raises(ModelError, match=said):
            load_packed_model(path)
        return
    path.write_bytes(tensor_file(facts))
    with pytest.raises(ModelError, match=said):
        load_model(path)
    load_model(path, input_shape=(1000, 1000, 1))
    path.write_bytes(tensor_file(window(1000, 100)))
    load_model(path)


def test_what_an_image_takes_that_passes() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2), nn.AvgPool2d(2), nn.MaxPool2d(3, 1), nn.Flatten(),
        nn.Linear(24, 5),
    )  # fmt: skip
    products = 8 * 8 * 6 * 2 * 9 + 24 * 5
    pools = 4 * 4 * 6 * 4 + 2 * 2 * 6 * 9
    assert products + pools <= passing(model, (4, 10, 10)).work <= products + pools + 2000


def _packed(path: Path) -> object:
    return load_packed_model(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a\0b", r"layer 'a\\x00b': the name of a layer has the sign NUL"),
        ("a\ud800", r"layer 'a\\ud800': the name of a layer has half of a surrogate pair"),
        (".".join("a" * 1500), "the name of a layer has 1500 parts, at most 100 are allowed"),
        ("n" * 20_000, "the name of a layer has 20000 signs"),
    ],
)
def test_names_that_no_layer_can_have(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    facts: Any = branches(4, 2)
    facts["layers"]["layers"][-1]["name"] = facts["layers"]["output"] = name
    path.write_bytes(tensor_file(facts))
    with pytest.raises(ModelError, match=said):
        load_model(path)
    facts = branches(4, 2)
    facts["layers"]["name"] = "a\0b"
    path.write_bytes(tensor_file(facts))
    with pytest.raises(ModelError, match="the name of a network has the sign NUL"):
        load_model(path)


@pytest.mark.parametrize("field", ["options", "notes"])
@pytest.mark.parametrize("levels", [90, 930])
def test_fields_are_not_nested_without_end(field: str, levels: int, tmp_path: Path) -> None:
    facts: Any = branches(4, 2)
    facts["layers"]["layers"][1][field] = {"function": "relu", "slope": "DEEP"}
    path = tmp_path / "net.safetensors"
    deep = json.dumps(json.dumps(facts)).replace(r"\"DEEP\"", "[" * levels + "]" * levels)
    head = f'{{"__metadata__": {{"bitwright": {deep}}}}}'.encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    if levels == 90 and field == "notes":
        assert entry.run(["import", str(path), "--out", str(tmp_path / "out")]) == 0
        return
    with pytest.raises(DataError, match=r"nested deeper than 100|is broken"):
        load_model(path)


def test_torch_reads_the_members_that_were_looked_at(tmp_path: Path) -> None:
    """Torch takes the list of members from where the file says, Python from before its end."""
    files, parts = [tmp_path / "one.pt", tmp_path / "two.pt"], []
    for number, path in enumerate(files, start=1):
        torch.save({"w": torch.full((4,), float(number))}, path)
        assert load_plain(path)["w"].tolist() == [number] * 4
        with zipfile.ZipFile(path) as archive:
            # Names of members begin with the file's: of one length here, so the lists are, too.
            count, start = len(archive.namelist()), archive.start_dir
            size = sum(46 + len(e.filename) + len(e.extra) for e in archive.infolist())
        parts.append(path.read_bytes()[: start + size])
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, size, start, 0)
    both = tmp_path / "both.pt"
    both.write_bytes(parts[1] + parts[0] + end)
    with zipfile.ZipFile(both) as archive:
        assert archive.testzip() is None and archive.namelist()[0].startswith("one/")
    assert torch.load(both, weights_only=True)["w"].tolist() == [2] * 4
    with pytest.raises(DataError, match="lies elsewhere than its last bytes say"):
        load_plain(both)


def _saved(path: Path, pickle: bytes) -> Path:
    """A file of torch.save with a pickle of protocol 2."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\2" + pickle + b".")
    return path


_ORDERED = b"ccollections\nOrderedDict\n"


def test_a_list_that_is_named_again_makes_no_dict_again(tmp_path: Path) -> None:
    """70 kB took 2 GB: each call of a few bytes made a dict of all entries."""
    entries = b"".join(b"](J" + struct.pack("<i", n) + b"Ne" for n in range(2000))
    start = _ORDERED + b"q\0](" + entries + b"e\x85q\1R]("
    few = load_plain(_saved(tmp_path / "few.pt", start + b"h\0h\1R" * 10 + b"e\x86"))
    assert len(few[1]) == 10 and all(len(each) == 2000 for each in few[1])
    many = _saved(tmp_path / "many.pt", start + b"h\0h\1R" * 1000 + b"e\x86")
    with pytest.raises(DataError, match="dicts of more than 1048576 entries"):
        load_plain(many)


def test_metadata_that_are_set_again_are_looked_at_once(tmp_path: Path) -> None:
    """A megabyte took ten minutes."""
    entries = b"".join(b"J" + struct.pack("<i", n) + b"}" for n in range(10_000))
    key = b"X" + struct.pack("<I", 9) + b"_metadata"
    pickle = _ORDERED + b")R}" + key + b"}(" + entries + b"usq\1b" + b"h\1b" * 20_000
    with within(4):
        assert load_plain(_saved(tmp_path / "x.pt", pickle)) == {}


def test_names_of_one_tensor_are_not_looked_at_without_end(tmp_path: Path) -> None:
    """10 000 names of 256 MB of zeros pack into a megabyte."""
    values = torch.zeros(2 << 20)
    torch.save({str(n): values.view(-1) for n in range(3)}, tmp_path / "tied.pt")
    assert len(load_plain(tmp_path / "tied.pt")) == 3
    torch.save({str(n): values.view(-1) for n in range(40)}, tmp_path / "many.pt")
    with pytest.raises(DataError, match="its tensors show 8388608 bytes as 335544320"):
        load_plain(tmp_path / "many.pt")


@pytest.mark.parametrize("axes", [65, 5000])
def test_tensors_have_axes_that_can_be_computed_with(axes: int, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1] * axes, "data_offsets": [0, 4]}
    head = json.dumps({"weight": entry}).encode()
    path = tmp_path / "net.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    with pytest.raises(DataError, match=r"axes|no whole safetensors"):
        load_tensors(path)


def test_a_file_has_no_more_tensors_than_networks_have(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(save({str(number): torch.zeros(1) for number in range(20_001)}))
    with pytest.raises(DataError, match="20001 tensors, at most 20000"):
        load_tensors(path)


@pytest.mark.parametrize(
    "marks", [("02-train", "05-quantize"), ("run.json",), ("run.json", "02-train")]
)
@pytest.mark.parametrize(
    "read",
    [
        read_model,
        read_quantized,
        trained_run,
        lambda place: load_recipe(*recipe_source(str(place))),
    ],
)
def test_a_design_folder_is_no_run_whatever_lies_in_it(
    read: Callable[[Path], Any], marks: tuple[str, ...], tmp_path: Path
) -> None:
    """`export` of a folder with a graph ran what its recipe named, as if it were a run."""
    (tmp_path / "graph.bwg").write_text("")
    (tmp_path / "evil_of_a_run.py").write_text(f"open({str(tmp_path / 'HARM')!r}, 'w')\n")
    fields = {
        "name": "x", "data": {"name": "digits"}, "model": {"name": "evil_of_a_run:net"},
        "quant": {"weight": "int4", "activation": "uint4"},
        "train": {"float": {"epochs": 1, "batch_size": 32, "lr": 0.1}},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(fields))
    for mark in marks:
        if mark == "run.json":
            (tmp_path / mark).write_text(json.dumps({"schema": 1, "recipe_dir": "."}))
        else:
            (tmp_path / mark).mkdir()
            (tmp_path / mark / "step.json").write_text("{}")
    with pytest.raises(BitwrightError):
        read(tmp_path)
    assert not (tmp_path / "HARM").exists()
