# SPDX-License-Identifier: Apache-2.0
"""Costs that a file gives: measured earlier, printed in a paper, assumed.

TOML or JSON. Times are seconds of one step; with ``steps: 1`` a step is an epoch, which is how
figures of whole epochs are written down. A number is a number, or ``{value, origin, note}``::

    name = "AlexNet, ImageNet"
    source = "given"                # or measurement, model
    steps = 1
    rest = {value = 700.0, origin = "assumed", note = "why"}
    policy = 0.0                    # seconds an epoch in few bits

    [[level]]
    name = "int8"
    products = 3.5                  # the sum, or a list of {layer, product, seconds}
    native = 3.5                    # as products, where the device is native; optional
    weights = 0.1                   # quantizing, optional
    activations = 20.0
    gradients = 0.1

    [[schedule]]
    name = "MuPPET"
    phases = "int8:40,int12:6,float32:45"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from bitwright.base.described import Strict
from bitwright.base.errors import DataError, RecipeError
from bitwright.base.figures import Source
from bitwright.base.files import atomic_write, json_text, parse_json, parse_toml, regular_bytes
from bitwright.base.records import PositiveOrZero
from bitwright.low_precision.costs.model import SUM, Cost, CostTable, LevelCosts, PartCost, total
from bitwright.low_precision.costs.schedule import Schedule, parse_schedule
from bitwright.low_precision.ladder import parse_level

_MOST_BYTES = 16 << 20
_PARTS = ("weights", "activations", "gradients")


class _Number(Strict):
    """Seconds, with where they come from.

    Attributes:
        joules: of the same, if known.
        spread: seconds either way.
        origin: ``given`` as it stands somewhere, ``assumed``, ``solved`` for from other numbers, or
            ``measured``.
    """

    value: PositiveOrZero
    joules: PositiveOrZero | None = None
    spread: PositiveOrZero = 0.0
    origin: Literal["given", "assumed", "solved", "measured"] = "given"
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _number_alone(cls, value: Any) -> Any:
        return {"value": value} if isinstance(value, int | float) else value

    @property
    def cost(self) -> Cost:
        return Cost(self.value, self.joules, self.spread)


class _OfLayer(Strict):
    layer: str
    seconds: _Number


class _Product(_OfLayer):
    product: Literal["forward", "grad_input", "grad_weight"]
    unit: str = ""


_Products = _Number | tuple[_Product, ...]
_Quantize = _Number | tuple[_OfLayer, ...]


class _Level(Strict):
    name: str
    products: _Products
    native: _Products | None = None
    weights: _Quantize = _Number(value=0.0)
    activations: _Quantize = _Number(value=0.0)
    gradients: _Quantize = _Number(value=0.0)
    rest: _Number | None = None

    @field_validator("name")
    @classmethod
    def _is_a_level(cls, value: str) -> str:
        return parse_level(value).name


class _Schedule(Strict):
    name: str
    phases: str
    note: str = ""


class _Document(Strict):
    name: Annotated[str, Field(min_length=1)]
    source: Literal["given", "model", "measurement"]
    steps: Annotated[int, Field(ge=1, le=1 << 40)]
    rest: _Number
    policy: _Number = _Number(value=0.0)
    level: Annotated[tuple[_Level, ...], Field(min_length=1)]
    schedule: tuple[_Schedule, ...] = ()
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)

    @field_validator("level")
    @classmethod
    def _levels_differ(cls, value: tuple[_Level, ...]) -> tuple[_Level, ...]:
        names = [level.name for level in value]
        if len(set(names)) < len(names):
            raise ValueError("a level is there twice")
        return value


@dataclass(frozen=True)
class GivenCosts:
    """What a file says.

    Attributes:
        table: the costs.
        schedules: that it names.
        facts: whatever else it holds, such as the figures that it was made from.
    """

    table: CostTable
    schedules: tuple[Schedule, ...]
    facts: Mapping[str, Any]


def read_costs(path: Path) -> GivenCosts:
    """The costs in a TOML or JSON file.

    Raises:
        DataError: it is missing, unreadable or too large.
        RecipeError: a number is missing or wrong (all are named).
    """
    try:
        text = regular_bytes(path, _MOST_BYTES).decode()
        fields = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"cannot be read: {error}",
            where=str(path),
            hint="expected a TOML or JSON file of costs by level",
        ) from error
    try:
        document = _Document.model_validate(fields)
    except ValidationError as error:
        lines = [_line(item["loc"], item["msg"]) for item in error.errors()]
        raise RecipeError(
            "; ".join(dict.fromkeys(lines)),
            where=str(path),
            hint="name, source, steps, rest and [[level]] with name and products are needed",
        ) from error
    return _costs(document, path)


def _line(place: tuple[int | str, ...], message: str) -> str:
    words = [str(part) for part in place if not str(part).startswith(("_", "tuple["))]
    return f"{'.'.join(words) or 'the file'}: {message}"


def _costs(document: _Document, path: Path) -> GivenCosts:
    levels = {
        level.name: LevelCosts(
            level.name,
            _parts(SUM, level.products),
            None if level.native is None else _parts(SUM, level.native),
            tuple(each for part in _PARTS for each in _parts(part, getattr(level, part))),
            None if level.rest is None else level.rest.cost,
        )
        for level in document.level
    }
    table = CostTable(
        document.name,
        Source(document.source),
        document.steps,
        document.rest.cost,
        document.policy.cost,
        levels,
        (*document.notes, *_origins(document)),
    )
    schedules = []
    for entry in document.schedule:
        try:
            schedules.append(parse_schedule(entry.phases, tuple(levels), name=entry.name))
        except RecipeError as error:
            where = f"{path}, schedule {entry.name!r}"
            raise RecipeError(error.message, where=where, hint=error.hint) from error
    return GivenCosts(table, tuple(schedules), document.facts)


def _parts(part: str, given: _Products | _Quantize) -> tuple[PartCost, ...]:
    """The costs of one part, by layer or as a sum; a sum of nothing is left out."""
    if isinstance(given, _Number):
        return (PartCost("", part, given.cost),) if given.value or part == SUM else ()
    return tuple(
        PartCost(each.layer, each.product, each.seconds.cost, each.unit)
        if isinstance(each, _Product)
        else PartCost(each.layer, part, each.seconds.cost)
        for each in given
    )


def _origins(document: _Document) -> list[str]:
    """A note for every number that is not simply given."""
    found: list[tuple[str, Any]] = [("rest", document.rest), ("policy", document.policy)]
    for level in document.level:
        parts = ("products", "native", *_PARTS, "rest")
        found += [(f"{level.name}.{part}", getattr(level, part)) for part in parts]
    return [
        f"{name}: {number.origin}" + (f", {number.note}" if number.note else "")
        for name, number in found
        if isinstance(number, _Number) and number.origin in ("assumed", "solved")
    ]


def write_costs(path: Path, table: CostTable, facts: Mapping[str, Any] | None = None) -> None:
    """Write a table as JSON that `read_costs` reads.

    Raises:
        DataError: the file cannot be written.
    """
    document = {
        "name": table.name,
        "source": table.source.value,
        "steps": table.steps,
        "rest": _number(table.rest),
        "policy": _number(table.policy),
        "level": [_level(level) for level in table.levels.values()],
        "notes": list(table.notes),
        "facts": dict(facts or {}),
    }
    try:
        atomic_write(path, json_text(document, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", where=str(path)) from error


def _level(level: LevelCosts) -> dict[str, Any]:
    found = {
        "name": level.level,
        "products": _written(level.products),
        "native": None if level.native is None else _written(level.native),
        "rest": None if level.rest is None else _number(level.rest),
    }
    for part in _PARTS:
        costs = [each for each in level.quantize if each.part == part]
        found[part] = _written(costs) if costs else None
    return {key: value for key, value in found.items() if value is not None}


def _written(costs: Sequence[PartCost]) -> Any:
    """By layer, or the sum where only that is known."""
    if any(each.part == SUM or not each.layer for each in costs):
        return _number(total(each.cost for each in costs))
    return [
        {"layer": each.layer, "seconds": _number(each.cost)}
        | ({} if each.part in _PARTS else {"product": each.part, "unit": each.unit})
        for each in costs
    ]


def _number(cost: Cost) -> dict[str, Any]:
    found: dict[str, Any] = {"value": cost.seconds}
    if cost.joules is not None:
        found["joules"] = cost.joules
    if cost.spread:
        found["spread"] = cost.spread
    return found
