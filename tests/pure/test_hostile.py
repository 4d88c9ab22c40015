# SPDX-License-Identifier: Apache-2.0
"""Files of strangers that were made to do harm: each is refused, with the reason."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.pace import within

from bitwright.base import store
from bitwright.base.archives import opened_zip, read_tar
from bitwright.base.errors import DataError, GraphError, RecipeError, RunError, TargetError
from bitwright.base.files import atomic_write, parse_toml, read_bytes
from bitwright.base.locks import exclusive
from bitwright.base.store import Store
from bitwright.build import target
from bitwright.cli.entry import run
from bitwright.cli.output import Output
from bitwright.data.decoding import Decoding, decode_image
from bitwright.data.image_database import read_list
from bitwright.data.listing import list_images, opened
from bitwright.data.mnist import read_idx
from bitwright.ir import INTEGER, load_graph
from bitwright.ir.node import array_digest
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.run_files import locked


def test_the_name_of_an_edge_is_no_text_of_c(tmp_path: Path) -> None:
    edge = 'x"};int run=system("id");char*y[]={"'
    text = f"graph x integer\ninput {edge} : uint4[2] * 0x1p+0 in [0,15]\noutput {edge}\n"
    path = tmp_path / "net.bwg"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("graph.txt", text)
    with pytest.raises(GraphError, match="is no name"):
        load_graph(path, {"integer": INTEGER})


def test_an_array_has_the_numbers_that_it_says(tmp_path: Path) -> None:
    body = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        body, {"descr": "<i8", "fortran_order": False, "shape": (1 << 40,)}
    )
    path = tmp_path / "net.bwg"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("graph.txt", "graph x integer\n")
        archive.writestr("0.npy", body.getvalue())
    with pytest.raises(DataError, match="does not hold the"):
        load_graph(path, {"integer": INTEGER})


_POOL = (
    'p = p:max_pool(x) {"kernel": [1, 1], "padding": [0, 0, 0, 0], "stride": [1, 1]} <> @ : '
    "uint4[8,8,1] * 0x1p+0 in [0,15]"
)
_INPUT = "uint4[8,8,1] * 0x1p+0 in [0,15]"


def graph_file(path: Path, kind: str = _INPUT, node: str = _POOL, **arrays: object) -> Path:
    """A graph of one node."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("graph.txt", f"graph x integer\ninput x : {kind}\n{node}\noutput p\n")
        for name, array in arrays.items():
            body = io.BytesIO()
            np.save(body, np.asarray(array))
            archive.writestr(f"{name}.npy", body.getvalue())
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("uint4[4000,4000,100] * 0x1p+0 in [0,15]", r"a frame of shape \(4000, 4000, 100\)"),
        (f"uint4[{'9' * 5000}] * 0x1p+0 in [0,15]", "no integer"),
        (f"int[2] * 0x1p+0 in [0,{'9' * 5000}]", "no integer"),
        (f"int[2] * 0x1p+0 in [0,{'9' * 4000}]", "needs more than 63 bits"),
    ],
)
def test_no_edge_is_larger_than_memory(kind: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=said):
        load_graph(graph_file(tmp_path / "net.bwg", kind), {"integer": INTEGER})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 1]", "[1]"),
        ("[1, 1]", "[[1], 1]"),
        ("[1, 1]", "[0, 0]"),
        ("[1, 1]", "[]"),
        ("[0, 0, 0, 0]", "[0]"),
        ("[0, 0, 0, 0]", "5"),
        (_INPUT, f"{_INPUT} ; {_INPUT}"),
        ("max_pool(x)", "sum_pool(x)"),
        ("{", '{"x": 1, '),
        ("@", "@ @"),
    ],
)
def test_fields_of_a_node_that_make_none(old: str, new: str, tmp_path: Path) -> None:
    assert load_graph(graph_file(tmp_path / "net.bwg"), {"integer": INTEGER})
    with pytest.raises(GraphError):
        path = graph_file(tmp_path / "net.bwg", node=_POOL.replace(old, new))
        load_graph(path, {"integer": INTEGER})


@pytest.mark.parametrize(
    "thresholds", [5, [], [1], [[[1]]], np.zeros((1, 0), np.int64), np.zeros((0, 1), np.int64)]
)
def test_parameters_of_ranks_that_no_rule_has(thresholds: object, tmp_path: Path) -> None:
    array = np.asarray(thresholds, np.int64)
    digest = array_digest(array)
    node = (
        'p = p:threshold(x) {"base": 0, "format": "uint4", "scale": [1.0], "step": 1} '
        f"<thresholds={digest}> @ : {_INPUT}"
    )
    with pytest.raises(GraphError):
        path = graph_file(tmp_path / "net.bwg", node=node, **{digest: array})
        load_graph(path, {"integer": INTEGER})


@pytest.mark.parametrize("kind", ["<f8", "<c16", "<U3", "?"])
def test_parameters_are_integers(kind: str, tmp_path: Path) -> None:
    path = graph_file(tmp_path / "net.bwg", x=np.zeros(2, kind))
    with pytest.raises(DataError, match=r"net\.bwg:x\.npy: holds .*, not integers"):
        load_graph(path, {"integer": INTEGER})


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("targets/xc7z020", "part"),
        ("targets/xc7z020", "package"),
        ("targets/xc7z020", "speed"),
        ("targets/cyclonev-5csema4", "part"),
        ("boards/ulx3s", "clk"),
        ("boards/ulx3s", "led"),
        ("boards/ulx3s", "io_type"),
    ],
)
@pytest.mark.parametrize("word", ["x[exec touch ran]", 'A1"; X', "A1\n", "$x", "", "a b"])
def test_words_of_scripts_are_words(file: str, field: str, word: str, tmp_path: Path) -> None:
    """A target's file ends up in Tcl, a board's in a pin file."""
    text = (Path(target.__file__).parent / f"{file}.toml").read_text()
    (tmp_path / "own.toml").write_text(
        re.sub(rf"(?m)^{field} = .*", lambda _: f"{field} = {json.dumps(word)}", text, count=1)
    )
    load = target.load_target if file.startswith("targets") else target.load_board
    with pytest.raises(TargetError, match=rf"{field}: String should match pattern"):
        load(tmp_path / "own.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 32 + " = 1", "a key has more than 32 parts"),
        ('x = \'#\' # """\n' + '"a" . ' * 40 + "a = 1", "a key has more than 32 parts"),
        ("[a" + ".a" * 3000 + "]", "a key has more than 32 parts"),
        ("x = {a" + ".a" * 3000 + " = 1}", "a key has more than 32 parts"),
        ('x = """a""""\n' + "a." * 40 + "a = 1", "a key has more than 32 parts"),
        ("x = " + "{a.a.a.a = " * 30 + "1" + "}" * 30, "nested deeper"),
        ("x = " + "[" * 120 + "]" * 120, "nested deeper"),
        ("clock_mhz = 0x" + "f" * 20_000, "an integer has more than 64 bits"),
        ("x = " + "1" * 5000, "cannot be read"),
        ("x = " + "[" * 5000, "nested deeper"),
        ("x = 1\n" * 200_000, "has more than 1048576 bytes"),
    ],
    ids=range(11),
)
def test_keys_and_values_of_toml_have_a_length(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(TargetError, match=said):
        target.load_target(tmp_path / "own.toml")


def test_dots_in_texts_of_toml_are_no_parts_of_keys() -> None:
    dots = "a" + ".a" * 100
    lines = (
        f'one = "{dots} \\" {dots}"',
        f"two = '{dots}'  # {dots} = 1",
        f'three = """\n{dots} " \\""" {dots}""""',
        f"four = '''\n{dots}\n'''",
        f"five = [{', '.join(['1.5'] * 100)}, 9223372036854775807]",
        "a.b.c = 1979-05-27T07:32:00.5Z",
    )
    found = parse_toml("\n".join(lines))
    assert found["one"] == f'{dots} " {dots}' and found["two"] == dots
    assert found["three"] == f'{dots} " """ {dots}"' and found["four"] == f"{dots}\n"
    assert len(found["five"]) == 101 and found["a"]["b"]["c"].microsecond == 500_000


@pytest.mark.parametrize("line", ['\\"""\n', '\\"', "\\'''\n", "'", '"\\', '"""\\'])
def test_texts_of_toml_without_an_end_are_looked_at_once(line: str) -> None:
    with within(2):
        with pytest.raises(ValueError):
            parse_toml(line * 20_000)


def test_names_of_files_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2J\x9b2J\x07\r\x7f\u202e\u2066\tb\nc"
    for json_wanted in (False, True):
        output = Output(json_wanted)
        output.error("ModelError", name, name, name, 3)
        output.say(name)
        if not json_wanted:
            output.table(name, [name], [[name]], name)
        said = capsys.readouterr()
        for text in (said.out, said.err):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", text)
        assert "a\\x1b[2J\\x9b2J\\x07\\x0d\\x7f\\u202e\\u2066\tb\nc" in said.err
    fields = json.loads(said.out)["error"]
    assert fields["message"] == name


def test_what_an_error_quotes_has_a_length() -> None:
    error = DataError("lists the layer " + "x" * 10**6 + " and no other", where="y" * 10**6)
    assert error.message.startswith("lists the layer x") and error.message.endswith("and no other")
    assert "... (1000029 characters) ..." in error.message and len(str(error)) < 10_000
    assert DataError("x" * 4000).message == "x" * 4000


def _aliases(merge: bool) -> str:
    lines = ["a0: &a0 {k: 1}" if merge else "a0: &a0 [1, 1]"]
    for level in range(1, 30):
        below = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{below}]}}" if merge else f"[{below}]"))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [_aliases(False), _aliases(True), "a: &a [*a]", "? [1, 2]\n: 3", "x: " + "[" * 60 + "]" * 60],
)
def test_aliases_of_aliases_are_counted_before_they_are_made(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"stands for more than|a key is a word"):
        load_recipe(path)


def test_postscript_under_the_name_of_a_picture_is_no_picture() -> None:
    body = io.BytesIO()
    Image.new("RGB", (4, 4)).save(body, "EPS")
    with pytest.raises(DataError, match="cannot be decoded: cannot identify"):
        decode_image(body.getvalue(), Decoding(), "0.png")


def test_a_lock_that_is_a_link_leaves_its_target_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(RunError, match="symbolic link"), exclusive(tmp_path / "run" / ".lock"):
        pass
    with pytest.raises(RunError, match="symbolic link"), locked(tmp_path / "run"):
        pass
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("name", [".work-07-report", ".old-07-report"])
def test_a_step_is_not_written_through_a_link(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="symbolic link"), locked(tmp_path / "run"):
        pass


def test_written_files_get_what_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_an_entry_that_others_could_have_written_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text("program")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "store"))
    kept = Store()
    kept.keep("native", "key", files={"x": tmp_path / "x"})
    assert kept.find("native", "key") is not None
    held = tmp_path / "store" / "native" / "key" / "x"
    held.chmod(0o666)
    assert kept.find("native", "key") is None
    assert Store(tmp_path / "store").find("native", "key") is not None  # as of an experiment
    with pytest.raises(PermissionError, match="others can write here"):
        kept.keep("native", "key", files={"x": tmp_path / "x"})
    held.chmod(0o644)
    assert kept.find("native", "key") is not None
    other = os.geteuid() + 1
    monkeypatch.setattr(store.os, "geteuid", lambda: other)
    assert (kept.find("native", "key") is None) == (held.stat().st_uid != 0)


def test_nothing_is_taken_from_a_cache_that_others_can_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may rename the folder of a kind gives another one between the look and the use."""
    (tmp_path / "x").write_text("program")
    above = tmp_path / "shared"
    monkeypatch.setenv("BITWRIGHT_CACHE", str(above / "store"))
    kept = Store()
    kept.keep("native", "key", files={"x": tmp_path / "x"})
    assert kept.find("native", "key") is not None and not kept.unwritable("native")
    for open_to_all in (above, above / "store"):
        open_to_all.chmod(0o777)
        assert kept.find("native", "key") is None
        assert kept.unwritable("native") == f"everybody may write into {open_to_all}"
        made = kept.made("native", "key", lambda work: (work / "x").write_text("own"))
        assert not made.folder.is_relative_to(above)  # it lasts as long as this process
        open_to_all.chmod(0o1777)
        assert kept.find("native", "key") is not None
        open_to_all.chmod(0o755)
    world = tmp_path / "world"
    world.mkdir()
    (world / "second").symlink_to(above / "store")
    (tmp_path / "first").symlink_to(world / "second")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "first"))
    assert kept.find("native", "key") is not None
    world.chmod(0o777)
    assert kept.find("native", "key") is None
    assert kept.unwritable("native") == f"everybody may write into {world}"
    world.chmod(0o755)
    (world / "in").mkdir()
    (tmp_path / "in").symlink_to("world/in")
    (tmp_path / "store").mkdir()
    (tmp_path / "by").symlink_to("in/../store")  # world/store, not the one beside it
    (world / "store").symlink_to("../shared/store")
    for way in (tmp_path / "in" / ".." / "store", tmp_path / "by"):
        monkeypatch.setenv("BITWRIGHT_CACHE", str(way))
        assert kept.find("native", "key") is not None
        world.chmod(0o777)
        assert kept.find("native", "key") is None
        assert kept.unwritable("native") == f"everybody may write into {world}"
        world.chmod(0o755)
    (tmp_path / "round").symlink_to("round")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "round"))
    assert kept.find("native", "key") is None and kept.unwritable("native")
    if os.geteuid() == 0:
        os.lchown(tmp_path / "first", 65534, 65534)
        monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "first"))
        assert kept.find("native", "key") is None
        assert kept.unwritable("native") == f"the link {tmp_path / 'first'} is another user's"
    monkeypatch.setenv("BITWRIGHT_CACHE", str(above / "store"))
    if os.geteuid() == 0:
        os.chown(above, 65534, 65534)
        assert kept.find("native", "key") is None
        assert kept.unwritable("native") == f"{above} is another user's"


@pytest.mark.parametrize("kind", ["hard link", "named pipe", "folder", "socket"])
def test_a_lock_that_is_no_file_of_its_own_is_refused(kind: str, tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / ".lock"
    precious.write_text("kept")
    if kind == "hard link":
        lock.hardlink_to(precious)
    elif kind == "named pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        os.mknod(lock, stat.S_IFSOCK | 0o600)
    with pytest.raises(RunError, match=f"is a {kind}.*, expected a lock file"), exclusive(lock):
        pass
    with pytest.raises(RunError, match=f"is a {kind}"), locked(tmp_path):
        pass
    assert precious.read_text() == "kept"


def _image_in(folder: Path) -> object:
    with opened(list_images(folder.parent.parent)) as read:
        return read("a/x.png")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("x", read_bytes),
        ("x", lambda path: read_bytes(path, most=10)),
        ("x.txt", read_list),
        ("x.gz", read_idx),
        ("x.zip", lambda path: opened_zip(path).__enter__()),
        ("x.tar.gz", lambda path: list(read_tar(path, {}))),
        ("a/x.png", _image_in),
    ],
)
@pytest.mark.parametrize("kind", ["named pipe", "device"])
def test_what_is_no_file_is_not_read(
    name: str, reader: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(DataError, match=f"it is a {kind}, expected a regular file"):
        reader(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["x.onnx", "x.bwq", "x.safetensors", "x.keras", "x.h5"])
def test_no_model_comes_from_a_pipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    assert run(["import", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 4
    assert "it is a named pipe, expected a regular file" in capsys.readouterr().err


def test_a_file_may_be_as_long_as_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"123")
    assert read_bytes(path, most=3) == read_bytes(path, most=1 << 50) == read_bytes(path) == b"123"
    with pytest.raises(DataError, match="has more than 2 bytes"):
        read_bytes(path, most=2)
    assert len(read_bytes(Path("/proc/self/maps"), most=1 << 30)) > 100


def test_a_file_without_a_size_has_a_longest_length() -> None:
    with pytest.raises(DataError, match="has more than 10 bytes"):
        read_bytes(Path("/proc/self/maps"), most=10)


def test_long_names_of_long_characters_are_written(tmp_path: Path) -> None:
    path = tmp_path / ("\u3042" * 80)
    atomic_write(path, "x")
    assert path.read_text() == "x" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "kept", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        atomic_write(tmp_path / "kept", "new")
    assert caught.value.filename == str(tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        exclusive(tmp_path / ".lock", remove=True),
    ):
        pass
    monkeypatch.undo()
    assert caught.value.filename == str(tmp_path / ".lock") and not [*tmp_path.iterdir()]
