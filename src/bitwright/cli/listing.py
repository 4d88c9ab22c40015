# SPDX-License-Identifier: Apache-2.0
"""`bitwright list` and `bitwright doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import repeat
from textwrap import fill
from typing import TYPE_CHECKING, Any

from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.base.tools.finder import ToolStatus

_IN = " " * 4


@dataclass(frozen=True)
class _Listing:
    """A table: column names, rows, a note below; and what only JSON has of each row."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""
    more: tuple[dict[str, Any], ...] = ()


def show_list(output: Output, kind: str, below: str = "") -> None:
    """Print one kind of thing that a recipe can name.

    Args:
        below: of keys, only those of this section, or this one.

    Raises:
        RecipeError: there is no such section, or the kind has none.
    """
    from bitwright.base.errors import RecipeError

    if kind == "keys":
        _show_keys(output, below)
        return
    if below:
        raise RecipeError(
            f"{kind} have no sections",
            where=below,
            hint=f"bitwright list {kind}; only keys can be listed below a section",
        )
    listing = _LISTINGS[kind]()
    if output.json_wanted:
        keys = [column.replace(" ", "_") for column in listing.columns]
        rows = [dict(zip(keys, row, strict=True)) for row in listing.rows]
        output.value(
            [row | more for row, more in zip(rows, listing.more or repeat({}), strict=False)]
        )
        return
    output.table(kind, listing.columns, listing.rows, listing.note)


def _show_keys(output: Output, below: str) -> None:
    """Keys of recipes, one after the other: paths are too long for a table. A section that may
    stand in several places comes once, unless one of the places is asked for.
    """
    from bitwright.pipeline.recipe_keys import keys_below, same_sections

    keys = keys_below(below)
    if output.json_wanted:
        output.value([asdict(key) for key in keys])
        return
    for key in keys:
        default = f" = {key.default}" if key.default else ""
        output.say(f"{key.path}{default}   ({key.allowed})")
        output.say(
            fill(key.meaning.replace("``", "`"), 96, initial_indent=_IN, subsequent_indent=_IN)
        )
    for first, others in () if below else same_sections():
        output.say(f"as {first}: {', '.join(others)}")


def show_doctor(output: Output) -> int:
    """Try every tool and print what was found.

    Returns:
        0 if all that are not optional work, else the exit code of ToolError.
    """
    from bitwright.base.errors import ToolError
    from bitwright.base.tools.finder import doctor

    with output.progress() as progress:
        progress("trying every tool", 0, 0)
        found = doctor()
    missing = [status for status in found if not (status.works or status.optional)]
    if output.json_wanted:
        output.value([status.to_json() for status in found])
        return ToolError.exit_code if missing else 0
    rows = [(s.name, _state(s), s.version, s.origin, s.needed_for) for s in found]
    output.table("tools", ("tool", "state", "version", "found", "needed for"), rows)
    for status in found:
        if status.works:
            continue
        output.say(f"{status.name}: {status.detail}\n  -> install it with: {status.install}")
    return ToolError.exit_code if missing else 0


def _state(status: ToolStatus) -> str:
    if status.works:
        return "works"
    return "not there" if status.optional else "MISSING"


def _recipes() -> _Listing:
    from bitwright.pipeline.recipe import list_experiments, list_recipes

    return _Listing(("name", "description"), [*list_recipes(), *list_experiments()])


def _formats() -> _Listing:
    from bitwright.explore.variants import DYNAMIC
    from bitwright.formats import list_formats

    families = (*list_formats(), DYNAMIC)
    rows = [(f.family, f.pattern, f.meaning, ", ".join(f.examples)) for f in families]
    return _Listing(("family", "names", "meaning", "examples"), rows)


def _models() -> _Listing:
    from bitwright.models import list_models

    note = "your own: module:function, a function that returns an nn.Module"
    return _Listing(("name", "summary"), [(m.name, m.summary) for m in list_models()], note)


def _pretrained() -> _Listing:
    from bitwright.models import list_pretrained

    entries = list_pretrained()
    columns = ("name", "model", "data", "float accuracy", "parameters", "KiB")
    rows = [
        (
            e.name,
            e.label,
            f"{e.data}, {'x'.join(map(str, e.image_shape))}, {e.classes} classes",
            f"{e.accuracy:.2%} of {e.test_images}",
            e.parameters,
            round(e.bytes / 1024),
        )
        for e in entries
    ]
    made = [f"{entry.name} was made by: {entry.command}" for entry in entries]
    use = "in a recipe: model.weights: pretrained, or train.pretrained: true"
    more = tuple({"made_by": entry.command} for entry in entries)
    return _Listing(columns, rows, "\n".join([*made, use]), more)


def _datasets() -> _Listing:
    from bitwright.data.spec import list_datasets

    return _Listing(
        ("name", "summary", "source"), [(d.name, d.summary, d.source) for d in list_datasets()]
    )


def _tasks() -> _Listing:
    from bitwright.tasks import list_tasks

    note = (
        "in a recipe: task: NAME, or {name: NAME, options: {..}, metric: package.module:function}"
    )
    return _Listing(("name", "summary"), [(t.name, t.summary) for t in list_tasks()], note)


def _targets() -> _Listing:
    from bitwright.build.target import list_targets

    columns = ("name", "part", "flow", "lut", "ff", "bram", "dsp", "description")
    rows = []
    for target in list_targets():
        have = target.resources
        capacities = (have.lut, have.ff, have.bram, have.dsp)
        rows.append((target.name, target.part, target.flow.value, *capacities, target.description))
    return _Listing(columns, rows, "your own: the path of such a TOML file")


def _policies() -> _Listing:
    from bitwright.low_precision.settings import POLICIES, CustomSettings

    rows, more = [], []
    known: dict[str, Any] = {**POLICIES, "package.module:function": CustomSettings}
    for name, settings in known.items():
        defaults = {
            field.alias or key: field.get_default(call_default_factory=True)
            for key, field in settings.model_fields.items()
            if key != "kind"
        }
        shown = ", ".join(f"{key}: {_yaml(value)}" for key, value in defaults.items())
        rows.append((name, settings.summary, shown))
        more.append({"parameters": defaults})
    note = (
        "who chooses the precision while training runs; in a recipe: "
        "train.float.low_precision.policy: NAME, or {kind: NAME, PARAMETER: ..}"
    )
    return _Listing(("name", "summary", "parameters"), rows, note, tuple(more))


def _presets() -> _Listing:
    from bitwright.quantize.presets import list_presets

    rows, more = [], []
    for name, section in list_presets().items():
        shown = ", ".join(f"{key}: {_flow(value)}" for key, value in section.items())
        rows.append((name, shown))
        more.append({"section": dict(section)})
    note = "in a recipe: quant: NAME, or quant: {preset: NAME, weight: {scale: max}, ..}"
    return _Listing(("name", "quant"), rows, note, tuple(more))


def _flow(value: Any) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _yaml(value)


def _yaml(value: Any) -> str:
    """A default as a recipe writes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


_LISTINGS = {
    "recipes": _recipes,
    "formats": _formats,
    "models": _models,
    "pretrained": _pretrained,
    "datasets": _datasets,
    "tasks": _tasks,
    "policies": _policies,
    "presets": _presets,
    "targets": _targets,
}
