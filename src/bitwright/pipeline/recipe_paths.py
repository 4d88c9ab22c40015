# SPDX-License-Identifier: Apache-2.0
"""Files that a recipe names: relative paths start at its folder, or else where the user stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bitwright.base.errors import RecipeError
from bitwright.low_precision.schedules import recorded
from bitwright.low_precision.settings import ReplaySettings
from bitwright.models.catalog import ModelSpec
from bitwright.pipeline.recipe_schema import Recipe, TeacherSection, TrainSection


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, and with a recorded schedule written out.

    Raises:
        RecipeError: a file does not exist.
        DataError: a recorded schedule cannot be read.
    """
    found = _with_paths(recipe, lambda path: _absolute(path, recipe.base_dir))
    for path, where in _files(found):
        if not path.is_file():
            raise RecipeError(f"no file {path}", where=where)
    return found.model_copy(update={"train": _with_schedule(recipe)})


def with_paths_of_its_folder(recipe: Recipe) -> Recipe:
    """The recipe with files below its folder named from there: it can move with the folder, and
    tells whoever gets it nothing of where that lay. What lies elsewhere keeps its path.
    """
    return _with_paths(recipe, lambda path: _below(path, recipe.base_dir))


def _with_paths(recipe: Recipe, change: Callable[[Path], Path]) -> Recipe:
    """The recipe with every path that it names changed."""

    def changed(path: Path | None) -> Path | None:
        return path and change(path)

    def model(spec: ModelSpec) -> ModelSpec:
        weights = change(spec.weights) if isinstance(spec.weights, Path) else spec.weights
        name = str(change(Path(spec.name))) if spec.is_file else spec.name
        return spec.model_copy(update={"weights": weights, "name": name})

    def teacher(entry: TeacherSection) -> TeacherSection:
        made = entry.model and model(entry.model)
        return entry.model_copy(update={"model": made, "logits": changed(entry.logits)})

    data, folding = recipe.data, recipe.hardware.folding_config_file
    places = {name: changed(getattr(data, name)) for name in ("path", "unlabelled")}
    engine = recipe.hardware.engine
    if Path(engine).suffix == ".json":
        engine = str(change(Path(engine)))
    update = {"folding_config_file": changed(folding), "engine": engine}
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=places),
            "hardware": recipe.hardware.model_copy(update=update),
            "model": model(recipe.model),
            "teacher": tuple(teacher(entry) for entry in recipe.teacher),
        }
    )


def _files(recipe: Recipe) -> Iterator[tuple[Path, str]]:
    """What must be there before anything begins, and the field that names it."""
    if recipe.hardware.folding_config_file is not None:
        yield recipe.hardware.folding_config_file, "hardware.folding_config_file"
    if Path(recipe.hardware.engine).suffix == ".json":
        yield Path(recipe.hardware.engine), "hardware.engine"
    yield from ((path, "model") for path in recipe.model.files)
    for entry in recipe.teacher:
        yield from ((path, "teacher") for path in (entry.model.files if entry.model else ()))
        if entry.logits is not None:
            yield entry.logits, "teacher.logits"


def _below(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _with_schedule(recipe: Recipe) -> TrainSection:
    """Training with a recorded schedule of precisions written out: the recipe then stands alone."""
    config = recipe.train.float_
    low = config.low_precision
    if low is None or not isinstance(low.policy, ReplaySettings) or low.policy.file is None:
        return recipe.train
    file = _absolute(low.policy.file, recipe.base_dir)
    policy = ReplaySettings(schedule=tuple(recorded(file)))
    written = config.model_copy(update={"low_precision": low.model_copy(update={"policy": policy})})
    return recipe.train.model_copy(update={"float_": written})


def _absolute(path: Path, base_dir: Path) -> Path:
    """The path that a recipe means.

    Raises:
        RecipeError: no file can have that name.
    """
    try:
        path = path.expanduser()
        beside = base_dir / path
        found = beside if beside.exists() or not path.exists() else path
        return path if path.is_absolute() else found.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, ~nobody
        raise RecipeError(f"{str(path)[:60]!r} is no name of a file: {error}") from error
