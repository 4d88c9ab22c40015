# SPDX-License-Identifier: Apache-2.0
"""The recipe: one validated YAML file that says everything a run needs.

Every error names the file and line, the field, the reason and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bitwright.base.bounded import bounded
from bitwright.base.errors import RecipeError, RunError
from bitwright.base.files import regular_bytes
from bitwright.base.trust import importable
from bitwright.pipeline.recipe_errors import explain_mistakes, run_with
from bitwright.pipeline.recipe_paths import with_absolute_paths
from bitwright.pipeline.recipe_schema import Recipe
from bitwright.pipeline.recipe_yaml import MOST_BYTES, Document, parse_document
from bitwright.pipeline.run_files import check_only_ours, recipe_folder
from bitwright.quantize.method_words import check_trainable
from bitwright.quantize.policy import Policy
from bitwright.train.config import PHASES

__all__ = [
    "RECIPES",
    "Recipe",
    "find_recipe",
    "is_recipe",
    "list_experiments",
    "list_recipes",
    "load_document",
    "load_recipe",
    "recipe_from_dict",
    "recipe_from_document",
]

RECIPES = Path(__file__).parents[1] / "recipes"
#: Of recipes' files; one may have none.
_ENDINGS = ("", ".yaml", ".yml")


def list_recipes() -> tuple[tuple[str, str], ...]:
    """Name and description of every recipe inside the package that makes a design."""
    return tuple(_inside(of_designs=True))


def list_experiments() -> tuple[tuple[str, str], ...]:
    """Name and description of every recipe inside the package of another kind: experiments."""
    return tuple(_inside(of_designs=False))


def _inside(*, of_designs: bool) -> Iterator[tuple[str, str]]:
    for path in sorted(RECIPES.glob("*.yaml")):
        fields = parse_document(path.read_text(encoding="utf-8"), str(path)).value
        if ("kind" not in fields) == of_designs:
            yield path.stem, str(fields.get("description", ""))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe, given by path or by the name of one inside the package.

    Raises:
        RecipeError: there is no such recipe, or the file is called as something else is.
    """
    path, found = Path(name).expanduser(), _recipe_at(name)
    if is_packaged(name):
        check_only_ours(name, "a recipe of Bitwright")
    if found is not None:
        _check_ending(found)
        return found
    known = [entry.stem for entry in sorted(RECIPES.glob("*.yaml"))]
    close = difflib.get_close_matches(str(name), known, n=1)
    if len(path.parts) > 1:
        raise RecipeError(
            f"there is no recipe or run directory {str(name)!r}",
            hint=_near(path) or "`bitwright build RECIPE` makes a run directory",
        )
    raise RecipeError(
        f"no recipe {str(name)!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
        hint=f"name a YAML file, or one of: {', '.join(known)}; "
        "`bitwright init` writes one for your own model",
    )


def _check_ending(file: Path) -> None:
    """Refuse a file that says by its name to be no recipe: what runs no code is not to do so for a
    verb that takes both, whatever text is in it.

    Raises:
        RecipeError: it does.
    """
    if file.suffix.lower() not in _ENDINGS:
        raise RecipeError(
            f"ends in {file.suffix}, and is no recipe: those end in .yaml or .yml",
            where=str(file),
            hint="if it is one, rename it; a recipe may name code, which is run",
        )


def is_recipe(name: str | Path) -> bool:
    """Whether `find_recipe` finds a file."""
    return _recipe_at(name) is not None


def is_packaged(name: str | Path) -> bool:
    """Whether it is the name of a recipe inside the package."""
    return Path(name).name == str(name) and (RECIPES / f"{name}.yaml").is_file()


def _recipe_at(name: str | Path) -> Path | None:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    return RECIPES / f"{name}.yaml" if is_packaged(name) else None


def _near(path: Path) -> str:
    """What lies where a mistyped path points."""
    if not path.parent.is_dir():
        return f"{str(path.parent)!r} does not exist either"
    there = sorted(entry.name for entry in path.parent.iterdir())[:8]
    return f"{str(path.parent)!r} holds {', '.join(there)}" if there else ""


def load_recipe(
    name: str | Path,
    overrides: Sequence[str] = (),
    *,
    data_dir: str | Path | None = None,
    base_dir: Path | None = None,
) -> Recipe:
    """Load and check a recipe.

    Args:
        name: a path, or the name of a recipe inside the package.
        overrides: assignments such as ``train.float.epochs=3``; the value is read as YAML.
        data_dir: replaces ``data.path``.
        base_dir: where relative paths start; by default the folder of the file, or where they did
            when it lies in a run directory.

    Raises:
        RecipeError: it does not exist, is no YAML, or breaks the schema.
    """
    document = load_document(name, overrides, data_dir=data_dir)
    return recipe_from_document(document, base_dir)


def load_document(
    name: str | Path, overrides: Sequence[str] = (), *, data_dir: str | Path | None = None
) -> Document:
    """The values of a recipe's file with their places, not yet checked; see `load_recipe`.

    Raises:
        RecipeError: it does not exist, is no YAML, or no recipe of a design.
    """
    path = find_recipe(name)
    try:
        # of UTF-8: more characters than are read
        text = regular_bytes(path, 4 * MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise RecipeError(
            "is no text, so no recipe",
            where=str(path),
            hint="name a YAML file; a network needs the ending .onnx",
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise RecipeError(f"cannot be read: {reason}", where=str(path)) from error
    document = bounded(lambda: parse_document(text, str(path)), path)
    if "kind" in document.value:
        raise RecipeError(
            f"is a recipe of kind {document.value['kind']!r}, not of a design",
            where=document.where(("kind",)),
            hint=run_with(str(document.value["kind"])),
        )
    for assignment in overrides:
        document = document.override(assignment)
    if data_dir is not None:
        place = str(Path(data_dir).expanduser().resolve())
        document = document.assign(("data", "path"), place, "--data")
    return document


def recipe_from_document(document: Document, base_dir: Path | None = None) -> Recipe:
    """The recipe of a file's values, checked; ``base_dir`` as in `load_recipe`.

    Raises:
        RecipeError: it breaks the schema.
    """
    return _validate(document, (base_dir or _folder_of(Path(document.file))).resolve())


def _folder_of(file: Path) -> Path:
    """Where a recipe's relative paths start: of one that lies in a run, as in that run."""
    with suppress(RunError):
        if file.name == "recipe.yaml":
            return recipe_folder(file.parent)
    return file.parent


def recipe_from_dict(fields: Mapping[str, Any], base_dir: Path | None = None) -> Recipe:
    """A recipe from plain values, checked in the same way.

    Raises:
        RecipeError: it breaks the schema.
    """
    return _validate(Document(dict(fields), "recipe", {}), (base_dir or Path()).resolve())


def _validate(document: Document, base_dir: Path) -> Recipe:
    fields = document.value
    if "base_dir" in fields:
        raise RecipeError("is not a field of a recipe", where=document.where(("base_dir",)))
    try:
        recipe = Recipe.model_validate({**_with_seeds(fields), "base_dir": base_dir})
    except ValidationError as error:
        raise explain_mistakes(error, document, Recipe) from error
    _check_policy(recipe, document)
    return with_absolute_paths(recipe)


def _check_policy(recipe: Recipe, document: Document) -> None:
    """The policy's own errors, with the line of the file."""
    try:
        with importable(recipe.base_dir):
            policy = Policy.from_dict(recipe.quant)
        if recipe.train.quantized is not None:
            check_trainable(policy.methods, "quant.methods")
    except RecipeError as error:
        keys = tuple(part for part in re.split(r"[.\[\]]+", error.where or "quant") if part)
        path = tuple(int(key) if key.isdigit() else key for key in keys)
        raise RecipeError(error.message, where=document.where(path), hint=error.hint) from error


def _with_seeds(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A training without a seed of its own takes that of the recipe; a teacher's, the next ones."""
    seed, train = fields.get("seed", 0), fields.get("train", {})
    if not isinstance(seed, int) or not isinstance(train, Mapping):
        return dict(fields)  # these are what is wrong
    seeded = {key: _seeded(phase, seed) for key, phase in {"float": {}, **train}.items()}
    quantized = train.get("quantized")
    if isinstance(quantized, Mapping) and any(name in quantized for name in PHASES):
        seeded["quantized"] = {name: _seeded(phase, seed) for name, phase in quantized.items()}
    filled = {**fields, "train": seeded}
    teachers = fields.get("teacher")
    if isinstance(teachers, Mapping):
        teachers = [teachers]
    if isinstance(teachers, Sequence) and not isinstance(teachers, str):
        filled["teacher"] = [
            {**entry, "train": _seeded(entry["train"], seed + number)}
            if isinstance(entry, Mapping) and "train" in entry
            else entry
            for number, entry in enumerate(teachers, 1)
        ]
    return filled


def _seeded(section: Any, seed: int) -> Any:
    return {"seed": seed, **section} if isinstance(section, Mapping) else section
