# SPDX-License-Identifier: Apache-2.0
"""One table of results, written as Markdown, CSV, JSON and HTML from the same values.

A value keeps all its digits in CSV and JSON; Markdown and HTML round for people. A measured value
carries its standard error, which is always shown beside it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bitwright.base.figures import Measured, number

_DASH = "-"
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.]*(e[+-]?\d+)?$)", re.IGNORECASE)
#: What begins a tag, a comment or an instruction of HTML; a number may be ``<0.01``.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: What follows the text of a link or picture: its address, the name of one, or the definition of
#: such a name.
_LINK = re.compile(r"\]([(\[:])")


Value = str | int | float | bool | Measured | None


class Kind(StrEnum):
    """What a column holds, which says how a value is shown.

    ``SHARE`` is a share of 1 shown in percent, ``POINTS`` a difference of shares shown in
    percentage points with its sign (a loss is negative), ``RATE`` a factor shown as ``x4.02``.
    """

    TEXT = "text"
    NUMBER = "number"
    SHARE = "share"
    POINTS = "points"
    RATE = "rate"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name in rows, CSV and JSON.
        title: its heading for people.
        unit: shown in the heading; of the values as they are stored, divided by ``per``.
        digits: after the point, for people; by default as many as the number needs.
        about: what it means and where it comes from; listed below the table.
        per: what stored values are divided by for people, such as 8000 to show bits in kB.
    """

    key: str
    title: str
    kind: Kind = Kind.TEXT
    unit: str = ""
    digits: int | None = None
    about: str = ""
    per: float = 1.0

    @property
    def heading(self) -> str:
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    @property
    def is_text(self) -> bool:
        return self.kind is Kind.TEXT

    def show(self, value: Value) -> str:
        """A value as people read it; a dash where there is none."""
        if value is None:
            return _DASH
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        if isinstance(value, Measured):
            return self._measured(value)
        return self._number(float(value)) if math.isfinite(value) else str(value)

    def _measured(self, measured: Measured) -> str:
        text = self._number(measured.value)
        if measured.error is None:
            return text
        if self.kind not in (Kind.SHARE, Kind.POINTS):
            return f"{text} \u00b1 {self._number(measured.error)}"
        digits = 2 if self.digits is None else self.digits
        bare = text.removesuffix(" %")
        tail = " %" if bare != text else ""
        error = f"{100 * measured.error:.{digits}f}"
        if measured.error > 0 and float(error) == 0:  # small is not none
            error = f"<{10.0**-digits:.{digits}f}"
        return f"{bare} \u00b1 {error}{tail}"

    def _number(self, value: float) -> str:
        digits, value = 2 if self.digits is None else self.digits, value / self.per
        if self.kind is Kind.SHARE:
            return f"{100 * value:.{digits}f} %"
        if self.kind is Kind.POINTS:
            rounded = round(100 * value, digits) + 0.0  # never "-0.00"
            return f"{rounded:+.{digits}f}" if rounded else f"{rounded:.{digits}f}"
        if self.kind is Kind.RATE:
            return f"\u00d7{value:.{digits}f}"
        return number(value) if self.digits is None else f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        rows: each a mapping from column keys to values; a missing key is an empty cell.
        notes: sentences below the table.

    Raises:
        ValueError: two columns have one key, or a row has a key without a column.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{self.title}: two columns have one key: {keys}")
        for row in self.rows:
            extra = sorted(set(row) - set(keys))
            if extra:
                raise ValueError(f"{self.title}: a row has {extra}, the columns are {keys}")

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """What the columns mean, for those that say it."""
        return tuple((c.title, c.about) for c in self.columns if c.about)

    def cells(self) -> list[list[str]]:
        """Every cell as people read it."""
        return [[c.show(row.get(c.key)) for c in self.columns] for row in self.rows]

    def to_markdown(self) -> str:
        """A Markdown table with its title, legend and notes."""
        lines = [one_line(f"## {self.title}"), ""] if self.title else []
        lines.append("| " + " | ".join(_escaped(c.heading) for c in self.columns) + " |")
        lines.append("|" + "|".join("---" if c.is_text else "---:" for c in self.columns) + "|")
        lines += ["| " + " | ".join(map(_escaped, cells)) + " |" for cells in self.cells()]
        if self.legend:
            lines += ["", *(one_line(f"* {title}: {text}") for title, text in self.legend)]
        if self.notes:
            lines += ["", *map(one_line, self.notes)]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Comma-separated values with all digits; a measured column has a ``KEY_error`` beside."""
        measured = {
            c.key
            for c in self.columns
            if any(isinstance(r.get(c.key), Measured) for r in self.rows)
        }
        head: list[str] = []
        for column in self.columns:
            head += [column.key, f"{column.key}_error"] if column.key in measured else [column.key]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_plain, head))
        for row in self.rows:
            line: list[Any] = []
            for column in self.columns:
                value = row.get(column.key)
                pair = (value.value, value.error) if isinstance(value, Measured) else (value, None)
                line += map(_plain, pair if column.key in measured else pair[:1])
            writer.writerow(line)
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Columns with their units, and the rows; a measured value is ``{"value", "error"}``."""
        columns = [
            {"key": c.key, "title": c.title, "kind": str(c.kind), "unit": c.unit, "about": c.about}
            for c in self.columns
        ]
        rows = [
            {
                key: value.to_json() if isinstance(value, Measured) else value
                for key, value in row.items()
            }
            for row in self.rows
        ]
        return {
            "title": self.title,
            "columns": columns,
            "rows": rows,
            "notes": list(self.notes),
        }


def value_from_json(value: Any) -> Value:
    """The inverse of what `Table.to_json` makes of one value."""
    if isinstance(value, dict):
        number = value["value"]  # null: none that JSON knows
        return None if number is None else Measured(float(number), value.get("error"))
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"{value!r} is no value of a table")


def _plain(value: str | float | bool | None) -> str | int | float:
    """As CSV has it. A stranger's name is no formula of a spreadsheet."""
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return "" if value is None else int(value) if isinstance(value, bool) else value


def one_line(text: str) -> str:
    """A text as one line of Markdown that holds no HTML, link or picture: it may come from a
    stranger's results.
    """
    return _LINK.sub(r"]\\\1", _TAG.sub("&lt;", " ".join(text.splitlines())))


def _escaped(text: str) -> str:
    """A cell: a bar ends it, and of two backslashes in front of one the first escapes the other."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", one_line(text))
