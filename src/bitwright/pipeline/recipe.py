# SPDX-License-Identifier: Apache-2.0
"""The recipe: one validated YAML file that says everything a run needs.

Every error names the file and line, the field, the reason and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from bitwright.base.errors import RecipeError
from bitwright.data.spec import DatasetSpec
from bitwright.low_precision.inference import AS_TRAINED, formats_as_trained
from bitwright.models.catalog import ModelSpec
from bitwright.pipeline.recipe_errors import explain_mistakes, run_with
from bitwright.pipeline.recipe_hardware import Count, HardwareSection, Section
from bitwright.pipeline.recipe_paths import with_absolute_paths
from bitwright.pipeline.recipe_yaml import Document, parse_document
from bitwright.quantize.policy import Policy
from bitwright.train.config import PHASES, Phases, TrainConfig

RECIPES = Path(__file__).parents[1] / "recipes"
_MAX_BYTES = 1 << 20


class TrainSection(Section):
    """Training in floating point, then training of the quantized model.

    Attributes:
        float_: settings of the float phase (key ``float``).
        quantized: settings of training in few bits, of one phase or phase by phase; None means
            post-training quantization only.
        pretrained: take the float network that comes with the package, where it is the result of
            just this training (model, data, seed and settings); else it is trained here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    float_: TrainConfig = Field(default=TrainConfig(), alias="float")
    quantized: Phases | None = None
    pretrained: bool = False

    @model_validator(mode="after")
    def _one_network(self) -> TrainSection:
        if self.float_.peer is not None:
            raise ValueError("float trains one network: peer belongs to quantized.co_study")
        if self.float_.incremental is not None:
            raise ValueError("float has no bits to lower: incremental belongs to quantized")
        if self.quantized and any(phase.low_precision for _, phase in self.quantized.present):
            raise ValueError("quantizers have formats of their own: low_precision belongs to float")
        return self


class TeacherSection(Section):
    """A float model whose scores the student learns, or the scores alone.

    Attributes:
        model: which one, and the weights it starts from.
        train: how it is trained first; None takes the weights as they are.
        logits: instead of a model: file of the scores of the training images, computed elsewhere
            (`train.teacher_outputs.write_outputs`).
    """

    model: ModelSpec | None = None
    train: TrainConfig | None = None
    logits: Path | None = None

    @field_validator("model", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return _name_alone(value)

    @model_validator(mode="after")
    def _knows_something(self) -> TeacherSection:
        if (self.model is None) == (self.logits is None):
            raise ValueError("give either model or logits")
        if self.model is None:
            if self.train is not None:
                raise ValueError("logits are no network that could be trained: remove train")
            return self
        if self.train is None and self.model.weights is None and not self.model.files:
            raise ValueError("has neither weights nor training: give model.weights or train")
        if self.train is not None and self.train.distillation is not None:
            raise ValueError("a teacher has no teacher of its own: remove train.distillation")
        if self.train is not None and self.train.incremental is not None:
            raise ValueError("a teacher has no bits to lower: remove train.incremental")
        return self


class SimulateSection(Section):
    """How much of the proof to run.

    Attributes:
        images: held-out images to simulate, or ``all``.
        stall_images: how many of them again with random stalls on both sides.
        stall_probability: chance of a stall in a cycle, on each side.
    """

    images: Count | Literal["all"] = "all"
    stall_images: Count = Field(default=20, validation_alias=AliasChoices("stall_images", "stalls"))
    stall_probability: Annotated[float, Field(gt=0, lt=1)] = 0.5


class ImplementSection(Section):
    """How hard to try.

    Attributes:
        seeds: placement seeds to try; the fastest result that meets the clock is kept.
        timeout_s: longest time that one tool may take, in seconds.
    """

    seeds: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    timeout_s: Annotated[float, Field(gt=0, le=24 * 3600)] = 1200.0


class ReportSection(Section):
    """What the page shows.

    Attributes:
        sample_images: held-out images drawn with their predictions.
        cpu_threads: threads of the CPU baseline.
    """

    sample_images: Annotated[int, Field(ge=0, le=200, strict=True)] = 24
    cpu_threads: Annotated[int, Field(ge=1, le=256, strict=True)] = 1


class Recipe(Section):
    """Everything a run needs; see the commented ``recipes/digits.yaml``.

    Attributes:
        quant: the policy, as `quant.Policy` reads it; or ``as_trained``: the lowest level of
            ``train.float.low_precision``.
        teacher: who teaches; several are an ensemble, none is the student's own float self.
        base_dir: folder of the recipe file: relative paths and the user's own modules start here.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    data: DatasetSpec
    model: ModelSpec
    quant: dict[str, Any] = Field(default_factory=dict)
    teacher: tuple[TeacherSection, ...] = ()
    train: TrainSection = TrainSection()
    hardware: HardwareSection = HardwareSection()
    simulate: SimulateSection = SimulateSection()
    implement: ImplementSection = ImplementSection()
    report: ReportSection = ReportSection()
    base_dir: Path = Field(default=Path(), exclude=True)

    @field_validator("data", "model", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return _name_alone(value)

    @field_validator("teacher", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        if value is None:
            return ()
        return [value] if isinstance(value, Mapping) else value

    @model_validator(mode="before")
    @classmethod
    def _formats_of_training(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or fields.get("quant") != AS_TRAINED:
            return fields
        low = TrainSection.model_validate(fields.get("train") or {}).float_.low_precision
        if low is None:
            raise ValueError(f"quant: {AS_TRAINED} needs train.float.low_precision")
        return {**fields, "quant": formats_as_trained(low)}

    @model_validator(mode="after")
    def _float_teacher(self) -> Recipe:
        if self.train.float_.distillation is not None and not self.teacher:
            raise ValueError(
                "train.float.distillation asks for a teacher, and there is no section teacher"
            )
        return self

    @model_validator(mode="after")
    def _logits_serve(self) -> Recipe:
        if all(entry.logits is None for entry in self.teacher):
            return self
        if len(self.teacher) > 1:
            raise ValueError("teacher.logits stand for the only teacher, not for one of several")
        study = self.train.quantized
        if study is not None and study.co_study is not None:
            raise ValueError("co_study trains the teacher, and teacher.logits are none")
        for config in (self.train.float_, study.tutor_study if study is not None else None):
            learned = config.distillation if config is not None else None
            if learned is not None and not learned.is_cached:
                raise ValueError(
                    "teacher.logits are the scores of the images as they are: "
                    "set distillation.outputs to cached"
                )
        return self

    def resolved(self) -> dict[str, Any]:
        """The recipe with every default filled in, as plain YAML values."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """The resolved recipe as a YAML file."""
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True)


def list_recipes() -> tuple[tuple[str, str], ...]:
    """Name and description of every recipe inside the package that makes a design."""
    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        if path.stem not in dict(list_experiments()):
            rows.append((path.stem, load_recipe(path).description))
    return tuple(rows)


def list_experiments() -> tuple[tuple[str, str], ...]:
    """Name and description of every recipe inside the package of another kind: experiments."""
    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        fields = parse_document(path.read_text(encoding="utf-8"), str(path)).value
        if "kind" in fields:
            rows.append((path.stem, str(fields.get("description", ""))))
    return tuple(rows)


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe, given by path or by the name of one inside the package.

    Raises:
        RecipeError: there is no such recipe.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    inside = RECIPES / f"{name}.yaml"
    if path.name == str(name) and inside.is_file():
        return inside
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
        base_dir: where relative paths start; by default the folder of the file.

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
        if path.stat().st_size > _MAX_BYTES:
            raise RecipeError("is larger than 1 MiB; a recipe is a short text", where=str(path))
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            "is no text, so no recipe",
            where=str(path),
            hint="name a YAML file; a network needs the ending .onnx",
        ) from error
    except OSError as error:
        raise RecipeError(f"cannot be read: {error}", where=str(path)) from error
    document = parse_document(text, str(path))
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
    return _validate(document, (base_dir or Path(document.file).parent).resolve())


def recipe_from_dict(fields: Mapping[str, Any], base_dir: Path | None = None) -> Recipe:
    """A recipe from plain values, checked in the same way.

    Raises:
        RecipeError: it breaks the schema.
    """
    return _validate(Document(dict(fields), "recipe", {}), (base_dir or Path()).resolve())


def _validate(document: Document, base_dir: Path) -> Recipe:
    fields = document.value
    if "data" in fields:
        fields = {**fields, "data": _name_alone(fields["data"])}
    if "model" in fields:
        fields = {**fields, "model": _name_alone(fields["model"])}
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
        Policy.from_dict(recipe.quant)
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


def _name_alone(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value
