# SPDX-License-Identifier: Apache-2.0
"""Where the user stands may lie anything: nothing of it is imported but what somebody names."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile_folder import NAMES, hostile_folder

from bitwright.base import plugins
from bitwright.base.errors import ModelError
from bitwright.base.tools import finder
from bitwright.base.tools.process import run_process
from bitwright.base.tools.python import SAFE_PATH, python, safe_children
from bitwright.base.trust import importable
from bitwright.jobs import Job, run_jobs
from bitwright.jobs.process import Limits, run_job

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
IMPORTS = (
    f"import contextlib\nfor n in {NAMES}:\n with contextlib.suppress(ImportError):__import__(n)"
)


@pytest.fixture
def harmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand among modules of strangers; none may have run in the end."""
    found = hostile_folder(tmp_path / "downloads")
    monkeypatch.chdir(found.parent)
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.delenv(*SAFE_PATH, raising=False)
    yield found
    assert not found.exists(), found.read_text()


def test_the_folder_is_one_that_harms(harmed: Path) -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], timeout=60, check=True)
    assert set(harmed.read_text().split()) >= {"queue", "torch", "no_package_at_all"}
    harmed.unlink()


def test_jobs_import_nothing_from_there(harmed: Path, tmp_path: Path) -> None:
    call = "tests.explore_calls:square"
    forked = Job("forked", call, {"x": 3}, tmp_path / "forked")
    (done,) = run_jobs([forked], workers=1)
    assert done.value["square"] == 9
    alone = run_job(Job("alone", call, {"x": 4}, tmp_path / "alone"), Limits(threads=1))
    assert alone.value["square"] == 16


def test_nor_do_programs_and_what_these_start(harmed: Path, tmp_path: Path) -> None:
    again = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {IMPORTS!r}])"
    commands = (python("-c", IMPORTS), python("-c", again), [sys.executable, "-c", again])
    for number, command in enumerate(commands):
        log = tmp_path / f"log{number}"
        assert run_process(command, cwd=Path.cwd(), log=log, timeout=60).returncode == 0


def test_nor_do_the_tools_of_packages(harmed: Path, tmp_path: Path) -> None:
    commands = [t.command for s in finder._SPECS for t in s.candidates() if "package " in t.origin]
    for command in commands:
        if command[0] == sys.executable:
            assert command[:2] == tuple(python())
    yosys = next((t for t in finder._yosys() if t.origin == "package pyosys"), None)
    if yosys is not None:
        finder.run_tool(yosys, ["-V"], cwd=Path.cwd(), log=tmp_path / "log", timeout=60)


def test_nor_do_processes_of_others(harmed: Path) -> None:
    before = dict(os.environ)
    with safe_children():
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=os.getpid)
        process.start()
        process.join(60)
    assert process.exitcode == 0 and dict(os.environ) == before


def test_the_command_line_as_a_module_takes_the_folder_off_again(harmed: Path) -> None:
    for words in ("doctor --help", "list models", "explain digits"):
        command = [sys.executable, "-m", "bitwright", *words.split()]
        done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_recipe_opens_its_folder_to_nobody_else(harmed: Path, tmp_path: Path) -> None:
    """Neither to our imports, nor to those of libraries."""
    sys.modules.pop("fileinput", None)
    with importable(tmp_path / "recipe"):
        assert importlib.import_module("fileinput").__file__ != str(Path("fileinput.py").resolve())
        assert importlib.util.find_spec("no_package_at_all") is None
        assert importlib.util.find_spec("torch.py") is None


@pytest.mark.parametrize("name", ["<string>", "<frozen os>"])
def test_a_file_that_is_called_like_code_without_one_opens_nothing(
    name: str, harmed: Path, tmp_path: Path
) -> None:
    """Code of ``exec`` and of what Python has built in has a name that is no path."""
    (harmed.parent / name).write_text("")
    with importable(tmp_path / "recipe"), pytest.raises(ImportError):
        exec(compile("import no_package_at_all", name, "exec"), {})


def test_the_users_modules_find_each_other(harmed: Path, tmp_path: Path) -> None:
    """Also late, by a name that is put together, in packages, and over both folders, where one of
    them lies in the other.
    """
    recipe = harmed.parent / "recipe_of_a_test"
    (recipe / "own_package_of_a_test").mkdir(parents=True)
    (recipe / "own_of_a_test.py").write_text(
        "import importlib\nimport own_beside_of_a_test as beside\n"
        "def value():\n"
        "    import own_here_of_a_test as here\n"
        "    inside = importlib.import_module('own_' + 'package_of_a_test.inside')\n"
        "    return lambda: (beside.A, here.A, inside.A, __import__('colorsys').__file__)\n"
    )
    (recipe / "own_beside_of_a_test.py").write_text("A = 1\n")
    (recipe / "colorsys.py").write_text("raise RuntimeError('is none of the user')\n")
    (harmed.parent / "own_beside_of_a_test.py").write_text("A = 'of the wrong folder'\n")
    (harmed.parent / "own_here_of_a_test.py").write_text("A = 2\n")
    (recipe / "own_package_of_a_test" / "inside.py").write_text("A = 3\n")
    sys.modules.pop("colorsys", None)
    before = list(sys.path), list(sys.meta_path)
    try:
        with importable(recipe):
            found = plugins.load_plugin("own_of_a_test:value", "model")()()
            assert importlib.util.find_spec("no_package_at_all") is None
        assert found[:3] == (1, 2, 3) and not found[3].startswith(str(recipe))
        assert (sys.path, sys.meta_path) == before
    finally:
        for name in [name for name in sys.modules if "_of_a_test" in name]:
            del sys.modules[name]
            plugins._IMPORTED.pop(name, None)


def test_what_is_not_installed_is_not_taken_from_where_one_stands(
    harmed: Path, tmp_path: Path
) -> None:
    """``try: import apex`` of one's own module ran the file of whoever may write into /tmp."""
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "trying_of_a_test.py").write_text(
        "try:\n    import apex_of_a_test as apex\nexcept ImportError:\n    apex = None\n"
        "def value(): return apex\n"
    )
    (harmed.parent / "apex_of_a_test.py").write_text("A = 1\n")
    try:
        with importable(recipe):
            assert plugins.load_plugin("trying_of_a_test:value", "model")() is None
        with importable(recipe, names=["apex_of_a_test"]):  # a recipe that says so means it
            assert importlib.import_module("apex_of_a_test").A == 1
    finally:
        (harmed.parent / "apex_of_a_test.py").unlink()
        for name in [name for name in sys.modules if "_of_a_test" in name]:
            del sys.modules[name]
            plugins._IMPORTED.pop(name, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_modules_where_everybody_may_put_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of another user's beside one's project ran, in its place (a package comes before a
    file), or compiled.
    """
    open_to_all = tmp_path / "open"
    mine = open_to_all / "mine"
    mine.mkdir(parents=True)
    open_to_all.chmod(0o1777)
    monkeypatch.chdir(open_to_all)
    trying = "try:\n    import {0}\nexcept ImportError:\n    {0} = None\nvalue = lambda: {0}\n"
    (mine / "one_of_a_test.py").write_text(trying.format("his_of_a_test"))
    his = open_to_all / "his_of_a_test.py"
    package = open_to_all / "two_of_a_test"
    his.write_text("A = 1\n")
    package.mkdir()
    (package / "__init__.py").write_text("value = lambda: 'his'\n")
    for name in ("two_of_a_test", "three_of_a_test"):
        (open_to_all / f"{name}.py").write_text("value = lambda: 'mine'\n")
    three = open_to_all / "three_of_a_test.py"
    times = three.stat()
    three.write_text("value = lambda: 'his.'\n")  # of one length, with the times of the other
    os.utime(three, ns=(times.st_atime_ns, times.st_mtime_ns))
    compiled = Path(py_compile.compile(str(three)) or "")
    three.write_text("value = lambda: 'mine'\n")
    os.utime(three, ns=(times.st_atime_ns, times.st_mtime_ns))
    for place in (his, package, package / "__init__.py", compiled.parent, compiled):
        os.chown(place, 54_321, -1)
    try:
        with importable(mine):
            assert plugins.load_plugin("one_of_a_test:value", "model")() is None
        with importable(open_to_all):
            assert plugins.load_plugin("three_of_a_test:value", "model")() == "mine"
            with pytest.raises(ModelError, match="another user's, in a folder into which everybod"):
                plugins.load_plugin("two_of_a_test:value", "model")
    finally:
        for name in [name for name in sys.modules if "_of_a_test" in name]:
            del sys.modules[name]
            plugins._IMPORTED.pop(name, None)


def test_every_python_is_started_in_one_way() -> None:
    """`base.tools.python` knows the command; whoever lets others start processes says so."""
    package = ROOT / "src" / "bitwright"
    for path in sorted(package.rglob("*.py")):
        if path == package / "base" / "tools" / "python.py":
            continue
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        named = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        assert "executable" not in named, f"{path}: write bitwright.base.tools.python.python(...)"
        if named & {"get_context", "ProcessPoolExecutor"} or "is_initialized" in named:
            assert "safe_children" in names, f"{path}: start them in safe_children()"
