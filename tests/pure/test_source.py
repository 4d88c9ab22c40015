# SPDX-License-Identifier: Apache-2.0
"""Keys of results follow from the code that makes them: each file of it counts, and no other."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bitwright.base.source import PACKAGE, Sources, module_key, our_code, script_key
from bitwright.base.source_text import read_source
from bitwright.pipeline.steps.names import STEP_NAMES

STEPS = {name: f"bitwright.pipeline.steps.{name}" for name in STEP_NAMES}
#: What may call `import_module` with a name that no reader of the file can know.
DYNAMIC = {
    "base/plugins.py",  # the user's own code, plug-ins: hashed where a recipe names them
    "interop/onnx/writer/writer.py",  # other people's packages
    "jobs/forks.py",  # what those functions import anyway
    "jobs/worker.py",  # a job's function: its version is part of the job
}


class Edited(Sources):
    """Our code with another meaning of one file, which still imports what it did."""

    def __init__(self, path: Path, closure: dict[str, Path], meanings: Mapping[Path, str]) -> None:
        super().__init__((PACKAGE.parent,), PACKAGE.name)
        self.path, self.found, self.meanings = path, closure, meanings

    def closure(self, *modules: str) -> dict[str, Path]:
        return self.found

    def meaning(self, path: Path) -> str:
        return "edited" if path == self.path else self.meanings[path]


@pytest.mark.parametrize("step", STEP_NAMES)
def test_the_key_of_a_step_changes_with_each_file_that_it_imports_and_no_other(step: str) -> None:
    code = our_code()
    closure = code.closure(STEPS[step])
    meanings = {path: code.meaning(path) for path in closure.values()}
    key = code.key(STEPS[step])
    assert len(closure) > 50
    for path in PACKAGE.rglob("*"):
        changed = Edited(path, closure, meanings).key(STEPS[step]) != key
        assert changed == (path in meanings), path


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("quantize/incremental.py", STEP_NAMES),
        ("quantize/__init__.py", ()),  # it only names
        ("low_precision/arithmetic/layers.py", STEP_NAMES),
        ("hw/folding.py", ("map", "simulate", "report")),
        ("report/page.py", ("report",)),
        ("cli/app.py", ()),
    ],
)
def test_a_real_edit_is_seen(tmp_path: Path, name: str, steps: tuple[str, ...]) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "pretrained", "recipes")
    copy = shutil.copytree(PACKAGE, tmp_path / "bitwright", ignore=ignored)
    before = keys(tmp_path)
    with (copy / name).open("a") as file:
        file.write('\n\n# only words\n_EDITED = "edited"\n')
    after = keys(tmp_path)
    changed = {step for step in before if before[step] != after[step]}
    assert changed - {"implement"} == {*steps} - {"implement"}


def keys(root: Path) -> dict[str, str]:
    code = Sources((root,), "bitwright")
    return {step: code.key(module) for step, module in STEPS.items()}


def test_an_edit_of_a_file_counts_by_its_meaning(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": "import helper\n", "helper.py": "def f():\n    return 1\n"})
    key = Sources((tmp_path,)).key("main")
    write(tmp_path, {"helper.py": '# why\ndef f():\n    """What."""\n\n    return 1\n'})
    assert Sources((tmp_path,)).key("main") != key, "a docstring where there was none is `pass`"
    key = Sources((tmp_path,)).key("main")
    write(tmp_path, {"helper.py": 'def f():\n  """Other words."""\n  return 1  # so\n'})
    assert Sources((tmp_path,)).key("main") == key
    write(tmp_path, {"helper.py": 'def f():\n    """Other words."""\n    return 2\n'})
    assert Sources((tmp_path,)).key("main") != key
    write(tmp_path, {"helper.py": "def f(:\n"})
    assert Sources((tmp_path,)).key("main") != key


@pytest.mark.parametrize("room", ["rtl", "sim", "build", "report", "explore", "papers", "cli"])
def test_training_does_not_depend_on_what_comes_after_it(room: str) -> None:
    for step in ("teach", "train", "quantize"):
        found = our_code().closure(STEPS[step])
        assert not [name for name in found if name.startswith(f"bitwright.{room}")]


def test_training_depends_on_what_it_runs() -> None:
    found = our_code().closure(STEPS["train"])
    for name in (
        "bitwright.train.loop",
        "bitwright.quantize.incremental",
        "bitwright.low_precision.arithmetic.layers",
        "bitwright.models.resnet",
        "bitwright.data.cifar",
    ):
        assert name in found, name
    assert any(name.endswith(".c") for name in found)


def test_every_import_by_a_name_found_at_run_time_is_known() -> None:
    unknown = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Call) or not isinstance(
                node.func, ast.Name | ast.Attribute
            ):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("import_module", "__import__") and not named_inside(node.args[0]):
                unknown.add(path.relative_to(PACKAGE).as_posix())
    assert unknown <= DYNAMIC, "let Sources follow it, or say why it need not"


def named_inside(name: ast.expr) -> bool:
    """``f"bitwright.room.{name}"``, or a lazy table's ``f"{__name__}.{name}"``."""
    match name:
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.startswith("bitwright.")
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(id="__name__")), *_]):
            return True
    return False


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


CASES: dict[str, tuple[str, set[str]]] = {
    "late": ("def f():\n    from bitwright.room import one\n", {"bitwright.room.one"}),
    "typing": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bitwright.room.one\n"
        "else:\n    import bitwright.room.two\n",
        {"bitwright.room.two"},
    ),
    "tried": (
        "try:\n    import bitwright.room.one\nexcept ImportError:\n    import bitwright.room.two\n",
        {"bitwright.room.one", "bitwright.room.two"},
    ),
    "relative": (
        "from .room import one\nfrom . import other\nother.f(one)\n",
        {"bitwright.room.one", "bitwright.other"},
    ),
    "lazy": ("from bitwright.room import One\n", {"bitwright.room.one"}),
    "on demand": ("from bitwright.room import Two\n", {"bitwright.room.two"}),
    "attribute of a package taken from another": (
        "from bitwright import room as r\nr.One()\n", {"bitwright.room.one"}
    ),
    "attribute": ("import bitwright.room as r\nr.One()\n", {"bitwright.room.one"}),
    "constant": ("from bitwright.room import LIMIT\n", {"bitwright.room"}),
    "folder": (
        "import importlib\ndef f(n):\n    importlib.import_module(f'bitwright.room.{n}')\n",
        {"bitwright.room.one", "bitwright.room.two"},
    ),
    "text": ("JOB = 'bitwright.room.one:run'\n", {"bitwright.room.one"}),
    "data": (
        "from importlib.resources import files\nT = files('bitwright') / 'table.toml'\n",
        {"bitwright/table.toml"},
    ),
    "data that data includes": (
        "PAGE = 'page.html'\n", {"bitwright/page.html", "bitwright/base.html"}
    ),
    "data folder": (
        "from pathlib import Path\nP = Path(__file__).parent / 'native'\n",
        {"bitwright/native/a.c", "bitwright/native/b.h"},
    ),
    "data of any name": (
        "from pathlib import Path\ndef f(n):\n    return Path(__file__).parent / n\n",
        {
            f"bitwright/{name}"
            for name in ("native/a.c", "native/b.h", "table.toml", "page.html", "base.html")
        },
    ),
}  # fmt: skip


@pytest.fixture(name="package")
def _package(tmp_path: Path) -> Iterator[Path]:
    lazy = (
        '"""Names."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n'
        "    from bitwright.room.one import One\n"
        '_LAZY = {"One": "one"}\nLIMIT = 3\n'
        "def __getattr__(name):\n    from bitwright.room.two import Two\n    return Two\n"
    )
    write(
        tmp_path / "bitwright",
        {
            "__init__.py": "",
            "other.py": "def f(x): pass\n",
            "table.toml": "",
            "native/a.c": "",
            "native/b.h": "",
            "page.html": '{% extends "base.html" %}',
            "base.html": "",
            "room/__init__.py": lazy,
            "room/one.py": "class One: pass\n",
            "room/two.py": "class Two: pass\n",
        },
    )
    yield tmp_path


@pytest.mark.parametrize("case", CASES)
def test_imports_of_every_form_are_followed(package: Path, case: str) -> None:
    text, expected = CASES[case]
    write(package / "bitwright", {"main.py": text})
    found = set(Sources((package,)).closure("bitwright.main"))
    assert found == {"bitwright.main", *expected}


def test_a_package_that_does_more_than_name_counts(package: Path) -> None:
    write(package / "bitwright", {"main.py": "import bitwright.room.one\n"})
    assert "bitwright.room" not in Sources((package,)).closure("bitwright.main")
    with (package / "bitwright" / "room" / "__init__.py").open("a") as file:
        file.write("print(LIMIT)\n")
    assert "bitwright.room" in Sources((package,)).closure("bitwright.main")


def test_a_script_depends_on_the_modules_beside_it(tmp_path: Path) -> None:
    write(tmp_path, {"script.py": "import beside\n", "beside.py": "A = 1\n", "other.py": ""})
    key = script_key(tmp_path / "script.py")
    write(tmp_path, {"other.py": "B = 1\n"})
    assert script_key(tmp_path / "script.py") == key
    write(tmp_path, {"beside.py": "A = 2\n"})
    assert script_key(tmp_path / "script.py") != key


def test_a_file_that_cannot_be_parsed_is_its_bytes() -> None:
    assert read_source(b"def f(:") == read_source(b"def f(:") != read_source(b"def g(:")


OWN = {
    "nets/net.py": "from nets.blocks import width\n",  # a folder without __init__.py
    "nets/blocks.py": "width = 8\n",
    "table.py": "from pathlib import Path\nT = Path(__file__).parent / 'widths.csv'\n",
    "widths.csv": "8",
    "other.py": "",
    "other.csv": "",
}


@pytest.mark.parametrize("place", ["recipe", "PYTHONPATH"])
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("nets.net", {"nets/net.py", "nets/blocks.py"}),
        ("table", {"table.py", "widths.csv"}),
        ("beside", {"beside.py", "nets/blocks.py"}),
    ],
)
def test_the_key_of_the_users_module_changes_with_each_file_that_it_needs_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str, files: set[str]
) -> None:
    own = {**OWN, "beside.py": "from nets import blocks\n"}
    write(tmp_path, own)
    folders = (tmp_path,) if place == "recipe" else ()
    if not folders:
        monkeypatch.syspath_prepend(tmp_path)
    key = module_key(name, folders)
    assert key
    for file, text in own.items():
        write(tmp_path, {file: f"{text}\nA = 1\n"})
        assert (module_key(name, folders) != key) == (file in files), file
        write(tmp_path, {file: text})


def test_an_installed_module_is_followed_inside_its_package_alone() -> None:
    assert module_key("iniconfig") == module_key("iniconfig", (PACKAGE,)) != ""
    assert module_key("no_such_module_anywhere") == ""
