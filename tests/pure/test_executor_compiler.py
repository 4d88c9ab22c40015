# SPDX-License-Identifier: Apache-2.0
"""Building the C kernels: the cache, damaged entries, and compilers that are missing or broken."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bitwright.base import native
from bitwright.base.errors import ToolError
from bitwright.base.native import FLAG_SETS, find_compiler
from bitwright.ir.executor import compiler
from bitwright.ir.executor.layout import Feature, Op

FLAGS = ("-O0", "-DBW_GENERIC")


@pytest.fixture
def cc() -> str:
    found = find_compiler()
    if found is None:
        pytest.skip("no C compiler on PATH")
    return found


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not looked for a compiler yet, with an empty cache."""
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(vars(compiler.EXECUTOR), "loaded", raising=False)
    yield tmp_path
    vars(compiler.EXECUTOR).pop("loaded", None)


def fake_compiler(folder: Path, body: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def run_quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_library_is_built_once_and_leaves_nothing_else(cc, tmp_path):
    first = compiler.build_library(cc, FLAGS, tmp_path)
    stamp = first.path.stat().st_mtime_ns
    again = compiler.build_library(cc, FLAGS, tmp_path)
    assert again.path == first.path and again.path.stat().st_mtime_ns == stamp
    left = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert sorted(left) == sorted([first.path, first.path.with_name("entry.json")])
    assert first.features == Feature.THREADS and first.lanes[Op.LUT] == 32


def test_other_flags_are_another_library(cc, tmp_path, monkeypatch):
    one = compiler.build_library(cc, FLAGS, tmp_path)
    two = compiler.build_library(cc, (*FLAGS, "-DUNUSED=1"), tmp_path)
    monkeypatch.setattr(native, "_BASE_FLAGS", (*native._BASE_FLAGS, "-DUNUSED=1"))
    assert len({one.path, two.path, compiler.build_library(cc, FLAGS, tmp_path).path}) == 3


def test_a_damaged_cache_entry_is_built_again(cc, tmp_path):
    path = compiler.build_library(cc, FLAGS, tmp_path / "here").path
    other = shutil.copytree(tmp_path / "here", tmp_path / "other")  # never opened before
    damaged = other / path.relative_to(tmp_path / "here")
    damaged.write_bytes(b"not a library")
    assert compiler.build_library(cc, FLAGS, other).path == damaged
    assert damaged.stat().st_size > 1000


def test_vector_paths_of_newer_processors_compile(cc, tmp_path):
    """AVX-512 VNNI, vector popcount and AVX-VNNI: compiled here, also where they cannot run."""
    known = run_quietly([cc, "--target-help"]).stdout
    if "avx512vpopcntdq" not in known:
        pytest.skip("the compiler has no AVX-512")
    folder = Path(compiler.__file__).parent / "native"
    for flags in (
        ["-mavx512f", "-mavx512bw", "-mavx512vnni", "-mavx512vpopcntdq", "-mavx2"],
        ["-mavxvnni", "-mavx2"],
    ):
        for name in ("dot.c", "bits.c"):
            options = ["-std=gnu11", "-O0", "-Wall", "-Werror", *flags, "-c"]
            done = run_quietly([cc, *options, str(folder / name), "-o", str(tmp_path / "x.o")])
            assert done.returncode == 0, done.stderr


def test_no_compiler_means_numpy(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    assert compiler.native_library() is None
    status = compiler.native_status()
    assert not status.available and "no C compiler on PATH" in status.note


def test_a_failing_compiler_means_numpy(fresh, monkeypatch):
    fake_compiler(
        fresh / "bin", '[ "$1" = --version ] && echo cc 1 && exit 0; echo oh no >&2; exit 3'
    )
    monkeypatch.setenv("PATH", f"{fresh / 'bin'}")
    assert compiler.native_library() is None
    assert "oh no" in compiler.native_status().note


def test_a_compiler_that_does_not_know_the_processor_still_serves(cc, fresh, monkeypatch):
    body = f'for a in "$@"; do [ "$a" = -march=native ] && exit 1; done; exec {cc} "$@"'
    fake_compiler(fresh / "bin", body)
    monkeypatch.setenv("PATH", f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}")
    plain = tuple(("-O0", *flags[1:]) for flags in FLAG_SETS)
    monkeypatch.setattr("bitwright.base.native.FLAG_SETS", plain)
    status = compiler.native_status()
    assert status.available and status.note == "-O0 -pthread" and "THREADS" in status.features


def test_an_unusable_cache_folder_is_a_clear_error(cc, fresh, monkeypatch):
    (fresh / "file").write_text("")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(fresh / "file"))
    with pytest.raises(ToolError, match="cache folder is not usable"):
        compiler.build_library(cc, FLAGS, fresh / "file")
    assert compiler.build_library(cc, FLAGS).lanes, "that of this process serves instead"
