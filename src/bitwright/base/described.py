# SPDX-License-Identifier: Apache-2.0
"""Settings that are checked field by field, and devices that TOML files describe."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from bitwright.base.errors import DataError, TargetError
from bitwright.base.files import check_values, parse_toml, read_text

_MOST_BYTES = 1 << 20  # of a file, of which ours have some thousand


#: Kinds of a pydantic schema that hold any number of entries. Older pydantic knows no tables that
#: end at their first mistake.
_MANY = frozenset(
    kind
    for kind in ("list", "tuple", "set", "frozenset", "dict")
    if "fail_fast" in signature(getattr(core_schema, f"{kind}_schema")).parameters
)


def _stop_at_first(schema: Any, model: type) -> None:
    """Let all lists and tables of a model's schema end at their first mistake; other models in it
    have done so themselves.
    """
    if isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first(part, model)
    elif isinstance(schema, dict):
        kind, other = schema.get("type"), schema.get("cls")  # or fields of such names
        if isinstance(other, type) and other is not model:
            return
        if isinstance(kind, str) and kind in _MANY:
            schema["fail_fast"] = True
        for key, part in schema.items():
            if key not in ("metadata", "serialization"):
                _stop_at_first(part, model)


class Described(BaseModel):
    """Base of what files say, which may be a stranger's: of a list or a table its first wrong entry
    is told, not every one. A mistake takes a thousand bytes, and three bytes, ``{},``, are as many
    mistakes as an entry has fields.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first(handler.resolve_ref_schema(schema), cls)
        return schema


class Strict(Described):
    """Settings that refuse fields they do not know, and are never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Key:
    """One key that a recipe may have, as its reference shows it.

    Attributes:
        path: from the top of the file: ``train.float.lr``; ``[]`` stands behind a list.
        allowed: which values, in words, with their limits.
        default: as YAML writes it; ``required`` if there is none, nothing for a section.
        meaning: what its class says of it.
    """

    path: str
    allowed: str
    default: str
    meaning: str


@dataclass(frozen=True)
class KeySection:
    """The keys of one section of a recipe.

    Attributes:
        paths: where such a section may stand.
        summary: what it is.
        keys: with the first of the paths.
    """

    paths: tuple[str, ...]
    summary: str
    keys: tuple[Key, ...]


M = TypeVar("M")
B = TypeVar("B", bound=BaseModel)


def validated(model: type[M] | TypeAdapter[M], content: str | bytes) -> M:
    """What a JSON text of a stranger says: `model_validate_json`, which has no bounds.

    Raises:
        ValidationError: it is none, has wrong fields, or more values than `MOST_VALUES`: of a
            million wrong ones each would become an error of a thousand bytes.
    """
    try:
        if isinstance(content, str | bytes):  # pydantic says what is wrong with others
            check_values(content)
    except ValueError as error:
        wrong = PydanticCustomError("too_many_values", "{reason}", {"reason": str(error)})
        raise ValidationError.from_exception_data(
            "JSON", [{"type": wrong, "input": None}]
        ) from None
    adapter: TypeAdapter[M] = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
    return adapter.validate_json(content)


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file of the user's own."""
    return name.endswith(".toml") or "/" in name


def read_described(
    name: str | Path,
    folder: Path,
    model: type[B],
    kind: str,
    *,
    where: str | None = None,
    hint: str | None = None,
) -> B:
    """What a TOML file describes: one of a folder by its name, or the user's own by its path.

    Args:
        kind: what it is, for messages: ``device``.
        where: the name was given.
        hint: what to do about a file that is wrong.

    Raises:
        TargetError: unknown name, unreadable file, or fields that are wrong (all are named).
    """
    text = str(name)
    own = is_file_name(text)
    path = Path(text) if own else folder / f"{text}.toml"
    if own and not path.is_file():
        raise TargetError("there is no such file", where=text, hint=f"give a {kind}'s TOML file")
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise TargetError(
            f"unknown {kind} {text!r}; known are {known}",
            where=where,
            hint=f"or give the path of a {kind} file ending in .toml",
        )
    try:
        return model.model_validate(parse_toml(read_text(path, most=_MOST_BYTES)))
    except ValidationError as error:
        lines = []
        for item in error.errors():
            field = ".".join(map(str, item["loc"])) or "(file)"
            shown = item["type"] != "missing" and not isinstance(item["input"], dict)
            lines.append(f"{field}: {item['msg']}" + f" (given {item['input']!r:.200})" * shown)
        raise TargetError("; ".join(lines), where=str(path), hint=hint) from error
    except (DataError, ValueError) as error:
        hint = f"expected a TOML file of a {kind}"
        reason = error.message if isinstance(error, DataError) else f"cannot be read: {error}"
        raise TargetError(reason, where=str(path), hint=hint) from error
