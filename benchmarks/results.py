# SPDX-License-Identifier: Apache-2.0
"""What benchmarks that keep figures do alike: docs/results/NAME.json and the page made of it.

A page is made of its JSON alone, so what it says of command, machine and versions is noted when a
figure is taken, not when the page is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bitwright.base.processors import available_threads
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def kept(name: str) -> dict[str, Any]:
    """The figures of docs/results/NAME.json; none if there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def keep(name: str, figures: dict[str, Any], page: Callable[[dict[str, Any]], str]) -> None:
    """Write docs/results/NAME.json, and NAME.md as `page` makes it of the figures."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(kept(name)), encoding="utf-8")


def command(named: Mapping[str, str] | None = None, without: Collection[str] = ("--write",)) -> str:
    """What was typed.

    Args:
        named: what stands there instead of paths, which mean nothing elsewhere: ``{path: "RUN"}``.
        without: words that change no figure.
    """
    words = [(named or {}).get(word, word) for word in sys.argv[1:] if word not in without]
    return " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *words])


def machine(*packages: str) -> str:
    """Processor, cores that may be used, and versions of packages."""
    versions = (f"{package} {version(package)}" for package in packages)
    return ", ".join([cpu_name(), f"{available_threads()} cores", *versions])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
