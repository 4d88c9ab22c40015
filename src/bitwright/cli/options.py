# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs share, and what they stand for."""

from __future__ import annotations

import atexit
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.base.errors import RecipeError

if TYPE_CHECKING:
    from bitwright.pipeline.recipe import Recipe

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe: its name (`bitwright list recipes`) or a YAML file; a run directory, or "
        "the name of one in runs/; for map, simulate, implement and report also a folder of "
        "`import` or bitwright.build_model.",
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where results go; by default runs/NAME. Resumed if it exists."),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder or archive with the data set, instead of the recipe's."),
]
Assign = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field: --set train.float.epochs=3."),
]
TargetName = Annotated[
    str | None, typer.Option("--target", help="Hardware target, as --set hardware.target=NAME.")
]
Subject = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run directory; a folder that `import` made; a model file (.prototxt, .h5, .keras, "
        ".safetensors, .onnx); a name of the zoo or package.module:factory with --weights.",
    ),
]
DataName = Annotated[
    str | None,
    typer.Option("--data", help="A data set by name, orl, or a folder of class folders."),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="What must stay good: task, top1, agreement, verification, or your own package.module:"
        "function. By default that of the task; verification for networks of embeddings.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="Trained weights of a named model; or pretrained.")
]
Shape = Annotated[
    str | None, typer.Option("--input-shape", metavar="HxWxC", help="Size of an image.")
]
Classes = Annotated[
    int | None,
    typer.Option(
        "--classes",
        min=1,
        help="How many classes there are; of a model by name 10 by default.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=(1 << 32) - 1, help="Seed of the choice of calibration images."
    ),
]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of each; default cores/workers.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="A Ray cluster; 'local' starts one here."),
]
Reuse = Annotated[
    Path | None,
    typer.Option(
        "--reuse",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Reuse steps that runs in this folder have finished with the same inputs.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output.")]


#: Pixels along a side at most.
_MOST = 1 << 16


def out_place(out: Path | None, default: str) -> Path:
    """Where results go: what ``--out`` says, else a place here; errors as `default_place`."""
    from bitwright.base.places import claim, default_place, drop_empty

    if out is not None:
        return out
    place = default_place(Path(default), "--out")
    claim(place)
    atexit.register(drop_empty)
    return place


@contextmanager
def held_place(out: Path | None, default: str) -> Iterator[Path]:
    """As `out_place`, `held` until the command ends.

    Raises:
        RunError: as `held` and `default_place`.
    """
    from bitwright.base.places import held

    place = out_place(out, default)
    with held(place):
        yield place


@dataclass(frozen=True)
class Job:
    """A recipe and the run directory that belongs to it."""

    recipe: Recipe
    run_dir: Path


def resolve(
    name: str,
    run_dir: Path | None = None,
    data: Path | None = None,
    assignments: list[str] | None = None,
    target: str | None = None,
) -> Job:
    """What RECIPE and the options stand for.

    Raises:
        RecipeError: there is no such recipe, or it breaks the schema.
        RunError: a run directory of another version; or as `run_place`.
    """
    from bitwright.pipeline.recipe import load_recipe
    from bitwright.pipeline.run_files import run_place

    overrides = list(assignments or [])
    if target is not None:
        overrides.append(f"hardware.target={json.dumps(target)}")
    file, base_dir = recipe_source(name)
    recipe = load_recipe(file, overrides, data_dir=data, base_dir=base_dir)
    if base_dir is None:
        return Job(recipe, run_dir or run_place(recipe.name))
    place = Path(file).parent
    if run_dir is not None and run_dir.resolve() != place.resolve():
        raise RecipeError(
            f"{place} is a run directory itself",
            where="--run-dir",
            hint=f"name a recipe, such as {place / 'recipe.yaml'}, to start another run",
        )
    return Job(recipe, place)


def recipe_source(name: str) -> tuple[str | Path, Path | None]:
    """The recipe's name or file, and where its relative paths start if RECIPE is a run directory.

    Raises:
        RecipeError: an empty folder; or a recipe of ours and a folder have this name.
        RunError: a run directory of another version.
    """
    from bitwright.pipeline.recipe import is_packaged, is_recipe
    from bitwright.pipeline.run_files import (
        check_only_ours,
        check_run_folder,
        folder_of_recipe,
        run_called,
    )

    if is_packaged(name):
        check_only_ours(name, "a recipe of Bitwright")
    place = Path(name).expanduser()
    if not place.is_dir():
        called = None if is_recipe(name) else run_called(name)
        if called is None:
            return name, None
        place = called
    header = check_run_folder(place)
    if header is None:
        raise RecipeError(
            "is an empty folder, neither a recipe nor a run directory",
            where=str(place),
            hint="name a YAML file or a folder that `bitwright build` made",
        )
    return place / "recipe.yaml", folder_of_recipe(place, header)


def command_line() -> str:
    """The command that runs now, to be shown with its results."""
    return shlex.join(["bitwright", *sys.argv[1:]])


def parse_shape(text: str | None) -> tuple[int, int, int] | None:
    """Height, width and channels of ``160x320x3`` or ``160,320,3``.

    Raises:
        RecipeError: it is none.
    """
    if text is None:
        return None
    parts = re.split(r"[x,]", text.strip().strip("()").replace(" ", "").lower())
    sizes = [int(p) for p in parts if re.fullmatch(r"[0-9]{1,6}", p)]
    if len(sizes) != len(parts) or len(sizes) != 3 or not 1 <= min(sizes) <= max(sizes) <= _MOST:
        raise RecipeError(
            f"{text!r} is no height x width x channels",
            where="--input-shape",
            hint=f"three numbers from 1 to {_MOST}, such as 160x320x3",
        )
    return sizes[0], sizes[1], sizes[2]


def hardware_of(
    target: str | None,
    fps: float | None = None,
    fill: float | None = None,
    budget: str | None = None,
    clock_mhz: float | None = None,
) -> dict[str, Any] | None:
    """The section ``hardware`` that options stand for; None without a target.

    Raises:
        RecipeError: the others need a target, or the budget is none.
    """
    given = {"target_fps": fps, "fill": fill, "budget": budget, "clock_mhz": clock_mhz}
    found: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if target is None:
        if found:
            raise RecipeError(
                f"{', '.join(found)} without a target",
                where="--target",
                hint="name one: `bitwright list targets`",
            )
        return None
    if budget is not None:
        pairs = [part.partition("=") for part in budget.replace(" ", "").split(",")]
        if not all(re.fullmatch(r"[a-z]+", key) and value.isdecimal() for key, _, value in pairs):
            raise RecipeError(
                f"{budget!r} is no budget", where="--budget", hint="such as lut=8000,bram=20,dsp=0"
            )
        found["budget"] = {key: int(value) for key, _, value in pairs}
    return {"target": target, **found}


def parse_bits(text: str) -> tuple[int, ...]:
    """Widths such as ``32,8,4``.

    Raises:
        RecipeError: it is no such list.
    """
    parts = text.replace(" ", "").split(",")
    if not all(re.fullmatch(r"[0-9]{1,2}", part) and 1 <= int(part) <= 64 for part in parts):
        raise RecipeError(
            f"{text!r} is no list of widths",
            where="--bits",
            hint="numbers from 1 to 64, such as 32,8,4",
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
