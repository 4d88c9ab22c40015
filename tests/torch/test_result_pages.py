# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/results are what their figures say: nobody edits one of the two alone."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.parametrize(
    "name",
    [
        "bnn_classic",
        "detector_cells",
        "gm",
        "host_pipeline",
        "placement",
        "search",
        "skynet_fixed",
        "skynet_hardware",
    ],
)
def test_page_is_made_of_its_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    made = importlib.import_module(name).page(importlib.import_module("results").kept(name))
    assert made == (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")


def test_figures_are_kept_with_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed is noted without this machine's paths."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    results = importlib.import_module("results")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["/a/b.py", "/home/me/run", "--frames", "3", "--write"])
    assert results.kept("case") == {}
    found = {"rows": {"a": 1}, "command": results.command({"/home/me/run": "RUN"})}
    results.keep("case", found, lambda kept: str(kept["rows"]))
    assert json.loads((tmp_path / "case.json").read_text()) == found == results.kept("case")
    assert found["command"] == "python benchmarks/b.py RUN --frames 3"
    assert results.machine("numpy").count(", ") >= 2
    assert (tmp_path / "case.md").read_text() == "{'a': 1}"
    assert results.table(("x", "y"), [("1", "2")]) == ["| x | y |", "|---|---|", "| 1 | 2 |"]
