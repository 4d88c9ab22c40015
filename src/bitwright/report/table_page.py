# SPDX-License-Identifier: Apache-2.0
"""A report of experiments on disk: the same tables as Markdown, CSV, JSON and one HTML page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from markupsafe import Markup

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, json_text
from bitwright.base.version import __version__
from bitwright.report.page import render_template
from bitwright.report.table import Table, one_line


class Plot(Protocol):
    """What can be drawn: `Scatter`, `Bars`."""

    def to_svg(self) -> Markup:
        """The drawing; empty if there is nothing to draw."""


@dataclass(frozen=True)
class Section:
    """One table with its plots."""

    table: Table
    plots: tuple[Plot, ...] = ()


def render_tables(
    title: str, lead: str, sections: Sequence[Section], facts: Mapping[str, str]
) -> str:
    """The self-contained HTML page; every value is escaped."""
    return render_template(
        "table_page.html",
        title=title,
        lead=lead,
        sections=[(s.table, [plot.to_svg() for plot in s.plots]) for s in sections],
        facts=dict(facts),
        version=__version__,
    )


def check_folder(out: Path) -> None:
    """Raise where a folder for results cannot be.

    Raises:
        DataError: it is a file.
    """
    if out.exists() and not out.is_dir():
        raise DataError(
            "is a file; results go to a folder", where=str(out), hint="name another: --out"
        )


def write_report(
    folder: Path,
    name: str,
    *,
    title: str,
    lead: str,
    sections: Sequence[Section],
    facts: Mapping[str, str],
) -> dict[str, Path]:
    """Write ``NAME.md``, ``NAME.json``, ``NAME.html`` and a CSV file a table.

    With one table the CSV is ``NAME.csv``, with several ``NAME-TABLE.csv``. Every file is whole or
    not there.

    Args:
        facts: how to repeat it: command, seed, data, versions; shown in words.

    Returns:
        The paths, by what they are (``md``, ``json``, ``html``, ``csv`` or ``csv-TABLE``).
    """
    markdown = [f"# {one_line(title)}", "", one_line(lead), ""]
    markdown += [section.table.to_markdown() for section in sections]
    markdown += ["", *(one_line(f"* {key}: {value}") for key, value in facts.items())]
    record = {
        "title": title,
        "lead": lead,
        "bitwright": __version__,
        "facts": dict(facts),
        "tables": [section.table.to_json() for section in sections],
    }
    contents = {
        "md": (f"{name}.md", "\n".join(markdown) + "\n"),
        "json": (f"{name}.json", json_text(record, indent=1, ensure_ascii=False) + "\n"),
        "html": (f"{name}.html", render_tables(title, lead, sections, facts)),
    }
    if len(sections) == 1:
        contents["csv"] = (f"{name}.csv", sections[0].table.to_csv())
    else:
        for section in sections:
            slug = _slug(section.table.title)
            contents[f"csv-{slug}"] = (f"{name}-{slug}.csv", section.table.to_csv())
    paths = {}
    for kind, (file, text) in contents.items():
        paths[kind] = folder / file
        atomic_write(paths[kind], text)
    return paths


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
