# SPDX-License-Identifier: Apache-2.0
"""What pydantic finds wrong with a recipe, in words a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from bitwright.base.errors import RecipeError
from bitwright.base.plugins import plugged
from bitwright.pipeline.recipe_yaml import Document
from bitwright.train.config import PHASES

HIDDEN = "base_dir"
"""The field of a recipe that is no key of the file."""
_MOST_MISTAKES = 200


def explain_mistakes(
    error: ValidationError, document: Document, root: type[BaseModel]
) -> RecipeError:
    """The first mistakes of the recipe in one error; the very first gives place and hint."""
    mistakes: dict[str, tuple[str, str | None]] = {}
    for entry in error.errors()[:_MOST_MISTAKES]:
        where, message, hint = _mistake(dict(entry), document, root)
        if where in mistakes:  # one line for each option of a union: say it once
            message = f"is none of what is allowed, found {_short(entry['input'])}"
        mistakes[where] = (message, hint)
    (where, (message, hint)), *others = mistakes.items()
    for place, (other, _) in others:
        message += f"\n{place}: {other}"
    return RecipeError(message, where=where, hint=hint)


def _mistake(
    entry: dict[str, Any], document: Document, root: type[BaseModel]
) -> tuple[str, str, str | None]:
    """Place, reason and what is allowed."""
    kind, path = entry["type"], tuple(entry["loc"])
    if kind == "extra_forbidden":
        known = _fields_of(root, path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ""
        hint = f"keys allowed here: {', '.join(known)}"
        return document.where(_as_written(path, document, root)), f"unknown key{guess}", hint
    if kind == "missing":
        written = _as_written(path, document, root)
        hint = f"add the key {'.'.join(map(str, written))}"
        return document.where(written), "is missing", hint
    path = _real_part(root, path)
    where = document.where(_as_written(path, document, root))
    if kind == "value_error":
        return where, str(entry["msg"]).removeprefix("Value error, "), None
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        hint = f"its keys: {', '.join(_fields_of(root, path))}"
        return where, f"should be a section of keys, found {_short(entry['input'])}", hint
    reason = str(entry["msg"])
    reason = f"{reason[:1].lower()}{reason[1:]}, found {_short(entry['input'])}"
    return where, reason, _allowed(root, path)


def _as_written(
    path: tuple[int | str, ...], document: Document, root: type[BaseModel]
) -> tuple[int | str, ...]:
    """The path without what may be left out in a file (the name of an only phase, the number of
    an only teacher) and without the names that pydantic gives to the options of a union.
    """
    written: list[int | str] = []
    value: Any = document.value
    for length, key in enumerate(path):
        if str(key) in _tagged(_annotation(root, path[:length])):
            continue
        inner = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Sequence) and isinstance(key, int) and key < len(value):
            inner = value[key]
        implied = isinstance(key, int) or key in PHASES
        if implied and isinstance(value, Mapping) and key not in value:
            continue
        written.append(key)
        value = inner
    return tuple(written)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _model_at(root: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """The section that a path of keys leads to."""
    model, options = root, dict[str, type[BaseModel]]()
    for key in path:
        if isinstance(key, int):
            continue  # which one of several
        if key in options:
            model, options = options[key], {}
            continue
        info = _by_alias(model).get(str(key))
        options = {} if info is None else _tagged(info.annotation)
        inner = None if info is None else _section_in(info.annotation)
        if inner is None:
            break
        model = inner
    return model


def _by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _section_in(annotation: Any) -> type[BaseModel] | None:
    options = (annotation, *_tagged(annotation).values(), *get_args(annotation))
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _tagged(annotation: Any) -> dict[str, type[BaseModel]]:
    """The options of a union of sections that are told apart by a tag."""
    found: dict[str, type[BaseModel]] = {}
    for option in get_args(annotation):
        section, *notes = get_args(option) or (option,)
        found |= {note.tag: section for note in notes if isinstance(note, Tag)}
    return found


def _real_part(root: type[BaseModel], path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The path without what pydantic adds behind a field: the option of a union."""
    for length, key in enumerate(path):
        outer = _annotation(root, path[:length])
        if isinstance(key, int) and _section_in(outer) is not None:
            continue
        if str(key) in _tagged(outer):
            continue
        info = _by_alias(_model_at(root, path[:length])).get(str(key))
        if info is None:
            return path[:length] if length else path
        if _section_in(info.annotation) is None:
            return path[: length + 1]
    return path


def _annotation(root: type[BaseModel], path: Sequence[int | str]) -> Any:
    """What is declared for the field that a path of keys leads to."""
    info = _by_alias(_model_at(root, path[:-1])).get(str(path[-1])) if path else None
    return None if info is None else info.annotation


def _fields_of(root: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    return [name for name in _by_alias(_model_at(root, path)) if name != HIDDEN]


def _allowed(root: type[BaseModel], path: Sequence[int | str]) -> str | None:
    """What the field's own declaration says is allowed."""
    if not path:
        return None
    properties = _model_at(root, path[:-1]).model_json_schema()["properties"]
    words = describe_schema(properties.get(str(path[-1]), {}))
    return f"allowed: {words}" if words else None


_KINDS = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "null": "nothing",
    "boolean": "true or false",
    "object": "a section",
    "array": "a list",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def describe_schema(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        said = filter(None, (describe_schema(option) for option in options))
        return " or ".join(dict.fromkeys(said))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "$ref" in schema:
        return "a section of its own keys"
    bounds = [f"{sign} {_plain(schema[key])}" for key, sign in _BOUNDS.items() if key in schema]
    if "pattern" in schema:
        bounds.append("of letters, digits, '.', '_' and '-'")
    kind = _KINDS.get(str(schema.get("type")), "")
    if "prefixItems" in schema:
        items = ", ".join(describe_schema(item) for item in schema["prefixItems"])
        return f"{kind} [{items}]"
    inner = describe_schema(schema["items"]) if "items" in schema else ""
    if inner:
        return f"{kind}, each {inner}"
    return " ".join(filter(None, (kind, " and ".join(bounds))))


def _plain(limit: float) -> str:
    """A limit as people write it."""
    return str(int(limit)) if float(limit).is_integer() else f"{limit:g}"


def run_with(kind: str) -> str:
    """What to do with a recipe that is not of a design."""
    known = plugged("recipes")
    if kind in known:
        return f"run it with `{known[kind]}`"
    return f"kinds of other recipes: {', '.join(known)}; a recipe of a design has no field kind"
