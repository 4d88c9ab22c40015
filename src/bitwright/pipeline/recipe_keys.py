# SPDX-License-Identifier: Apache-2.0
"""Every key that a recipe may have, from the classes that read it: for `bitwright list keys` and
for the reference, ``docs/reference-recipe.md``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import AliasChoices, BaseModel, TypeAdapter

from bitwright.base.described import Key, KeySection
from bitwright.base.docstrings import meanings, parse_docstring
from bitwright.base.errors import RecipeError
from bitwright.base.plugins import load_attribute, plugged
from bitwright.pipeline.recipe_errors import HIDDEN, describe_schema
from bitwright.pipeline.recipe_schema import Recipe
from bitwright.quantize.policy_keys import quant_keys

_REQUIRED = "required"


@dataclass(frozen=True)
class _Field:
    """A field of a class that reads a section: its key, other spellings, and what is declared."""

    name: str
    key: str
    annotation: Any
    spellings: tuple[str, ...] = ()


def kinds_of_recipes() -> dict[str, type]:
    """The classes that read recipes, by their field ``kind`` (none: of a design)."""
    return {"": Recipe} | {kind: load_attribute(at) for kind, at in plugged("schemas").items()}


@cache
def recipe_keys(root: type = Recipe) -> tuple[KeySection, ...]:
    """The sections of a recipe, each once, with every place where it may stand: the plainest first.

    They come in the order of a file that has them all.
    """
    walked = list(_sections(root, "", ""))
    found: dict[type, KeySection] = {}
    for kind, place, title in walked:
        if kind in found:
            continue
        places = [other for same, other, _ in walked if same is kind]
        first = min(places, key=_plainness)
        if place != first:
            continue
        places.sort(key=_plainness)
        summary = " ".join(filter(None, (title, parse_docstring(kind.__doc__).summary)))
        found[kind] = KeySection(tuple(places), summary, tuple(_keys(kind, first)))
    sections = list(found.values())
    if root is Recipe:
        sections[1:1] = quant_keys()
    return tuple(sections)


def same_sections(root: type = Recipe) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Sections that may stand in several places: the first, and the others. What lies below one of
    them is not named again.
    """
    found: dict[str, tuple[str, ...]] = {}
    for section in recipe_keys(root):
        first, *others = section.paths
        own = tuple(
            place
            for place in others
            if not any(_moves(first, place, *pair) for pair in found.items())
        )
        if own:
            found.setdefault(first, own)
    return tuple(found.items())


def _moves(first: str, place: str, above: str, others: tuple[str, ...]) -> bool:
    """Whether a place follows from that of a section above."""
    rest = first.removeprefix(above)
    return rest.startswith(".") and place in {other + rest for other in others}


def _plainness(place: str) -> tuple[int, int]:
    return place.count("[]"), place.count(".")


def keys_below(prefix: str, root: type = Recipe) -> tuple[Key, ...]:
    """The keys whose paths begin with some names, wherever their section stands; of an empty prefix
    every key once.

    Raises:
        RecipeError: there is none.
    """
    if not prefix:
        return tuple(key for section in recipe_keys(root) for key in section.keys)
    every = [
        replace(key, path=place + key.path.removeprefix(section.paths[0]))
        for section in recipe_keys(root)
        for place in section.paths
        for key in section.keys
    ]
    wanted = prefix.replace("[]", "").strip(".")
    plain = [key.path.replace("[]", "") for key in every]
    found = [
        key
        for key, path in zip(every, plain, strict=True)
        if path == wanted or path.startswith(f"{wanted}.")
    ]
    if not found:
        close = difflib.get_close_matches(wanted, plain, n=1)
        raise RecipeError(
            f"a recipe has no key {prefix!r}",
            hint=f"did you mean {close[0]}?" if close else "bitwright list keys shows all",
        )
    return tuple(found)


def _sections(kind: type, place: str, title: str) -> Iterator[tuple[type, str, str]]:
    """A section and those below it: the class, where it stands, and which of several it is."""
    yield kind, place, title
    for field in _fields(kind):
        inner, listed = _classes(field.annotation)
        path = _join(place, field.key) + "[]" * listed
        for section in inner:
            yield from _sections(section, path, _which(section) if len(inner) > 1 else "")


def _which(kind: type) -> str:
    """How a file says which of several sections it is."""
    default = next(key.default for key in _keys(kind, "") if key.path == "kind")
    return "`kind` of your own." if default == _REQUIRED else f"`kind: {default}`."


def _fields(kind: type) -> Iterator[_Field]:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        yield from (_Field(f.name, f.name, hints[f.name]) for f in dataclasses.fields(kind))
        return
    assert issubclass(kind, BaseModel)  # `_classes` finds no others
    for name, info in kind.model_fields.items():
        if name == HIDDEN:
            continue
        other = info.validation_alias
        spellings = other.choices if isinstance(other, AliasChoices) else ()
        key = info.alias or name
        also = tuple(str(word) for word in spellings if word != key)
        yield _Field(name, key, info.annotation, also)


def _classes(annotation: Any) -> tuple[list[type], bool]:
    """The sections that a declaration allows, and whether it is a list of them."""
    is_class = isinstance(annotation, type)
    if is_class and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        return [annotation], False
    found: list[type] = []
    listed = get_origin(annotation) in {tuple, list}
    for part in get_args(annotation):
        inner, below = _classes(part)
        found += inner
        listed = listed or below
    return found, listed and bool(found)


def _keys(kind: type, place: str) -> Iterator[Key]:
    told = meanings(kind)
    for field in _fields(kind):
        meaning = told.get(field.name) or told.get(field.key, "")
        also = f" Also written {', '.join(f'`{word}`' for word in field.spellings)}."
        allowed, default = _value(kind, field)
        meaning += also if field.spellings else ""
        yield Key(_join(place, field.key), allowed, default, meaning)


@cache
def _schema(kind: type) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


def _value(kind: type, field: _Field) -> tuple[str, str]:
    """Which values a field may have, and the default."""
    schema = _schema(kind)
    if "properties" not in schema:  # a class that holds itself
        schema = schema["$defs"][kind.__name__]
    declared = schema["properties"][field.key]
    allowed = describe_schema(declared)
    if _classes(field.annotation)[0] and isinstance(declared.get("default"), dict):
        return allowed, ""
    if field.key in schema.get("required", ()):
        return allowed, _REQUIRED
    default = declared.get("default", {})
    return allowed, yaml.safe_dump(default, default_flow_style=True).removesuffix("\n...\n").strip()


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
