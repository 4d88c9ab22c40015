# SPDX-License-Identifier: Apache-2.0
"""The recipe of the face matrix, and its rows. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.base.files import regular_bytes
from bitwright.papers.faces.images import FacePreprocessing
from bitwright.pipeline.recipe_yaml import parse_document

KIND = "face-matrix"
_MOST_THRESHOLDS = 100_000
_STEPS = 100
_TINY = 1e-9
_Count = Annotated[int, Field(ge=1, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NetworkSection(_Section):
    """One network: a model of the zoo (or the user's own) and its weights.

    Attributes:
        name: what its rows are called.
        model, options: as in a recipe's ``model``.
        weights: a file that `load_weights` reads; relative to the recipe's folder. Left out, they
            are looked for as ``MODEL.safetensors`` or ``MODEL.pt`` in the folder of weights that
            the run is given.
    """

    name: str
    model: str
    options: dict[str, Any] = Field(default_factory=dict)
    weights: Path | None = None


class IdentitySection(_Section):
    """Known people and faces of each, for the classifier.

    Attributes:
        people: how many.
        each: faces of each of them.
    """

    people: _Count = 30
    each: _Count = 10


class SearchSection(_Section):
    """Ristretto's search.

    Attributes:
        each: faces a person that a setting is scored on.
        margin: largest loss of top-1 accuracy, in points.
        parity: whose behaviour the left half of the table has.
        weight_exponent_bits: of power-of-two weights, besides the sign.
    """

    each: _Count = 2
    margin: Annotated[float, Field(ge=0, le=100)] = 2.0
    parity: Literal["cpu", "gpu"] = "cpu"
    weight_exponent_bits: Annotated[int, Field(ge=1, le=5)] = 5


@dataclass(frozen=True)
class Sweep:
    """Which thresholds are tried on view 1.

    Attributes:
        lo, hi, step: the thresholds ``lo, lo + step, ..`` up to ``hi``. With ``hi`` left out they
            reach from ``lo`` to the largest distance on view 1 in 100 steps, for embeddings of
            any size.
        fixed: no sweep, this threshold.
        on_ties: of thresholds equally good the ``middle`` one (of the widest run of neighbours),
            or the ``first``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lo: float = 0.0
    hi: float | None = 1.0
    step: float = 0.01
    fixed: float | None = None
    on_ties: Literal["middle", "first"] = "middle"

    def __post_init__(self) -> None:
        if self.fixed is not None and not self.fixed >= 0:
            raise RecipeError(f"must be 0 or more, found {self.fixed}", where="verification.fixed")
        if self.hi is not None and not (0 <= self.lo < self.hi and 0 < self.step):
            raise RecipeError(
                f"no thresholds from {self.lo} to {self.hi} by {self.step}",
                where="verification.sweep",
            )
        if self.hi is not None and not (self.hi - self.lo) / self.step <= _MOST_THRESHOLDS:
            raise RecipeError(
                f"more than {_MOST_THRESHOLDS:,} thresholds from {self.lo:g} to {self.hi:g} by "
                f"{self.step:g}",
                where="verification.sweep",
                hint="take a larger step",
            )

    def thresholds(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """Those to try, ascending."""
        if self.hi is None:
            top = float(distances.max())
            return np.asarray(np.linspace(self.lo, max(top, self.lo + _TINY), _STEPS + 1))
        count = int((self.hi - self.lo) / self.step + 1e-9)
        return self.lo + self.step * np.arange(count + 1, dtype=np.float64)


class ClusterSection(_Section):
    """Entries of a table, by the scope of a table.

    Attributes:
        network: of one table for the whole network.
        group: of one for the layers of a group.
        layer: of one for each layer.
    """

    network: Annotated[int, Field(ge=2, le=4096)] = 512
    group: Annotated[int, Field(ge=2, le=4096)] = 512
    layer: Annotated[int, Field(ge=2, le=4096)] = 16


class FaceMatrixRecipe(_Section):
    """Everything that a matrix depends on, besides weights and pictures.

    Attributes:
        kind: this kind of recipe, which ``bitwright formats matrix`` runs.
        description: one line for ``bitwright list recipes``.
        networks: the networks, each with its own rows.
        protocol: of verification: which pairs of pictures there are.
        preprocessing: how a picture becomes an input.
        sweep: which thresholds are tried.
        identities: whom the classifier knows.
        search: Ristretto's search for widths.
        calibration: how many pictures ranges are measured on.
        clusters: sizes of tables.
        seed: of the choice of pictures and the first centroids.
    """

    kind: Literal["face-matrix"]
    description: str = ""
    networks: Annotated[tuple[NetworkSection, ...], Field(min_length=1)]
    protocol: Literal["orl", "lfw"] = "orl"
    preprocessing: FacePreprocessing = FacePreprocessing()
    sweep: Sweep = Sweep()
    identities: IdentitySection = IdentitySection()
    search: SearchSection = SearchSection()
    calibration: _Count = 60
    clusters: ClusterSection = ClusterSection()
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("networks")
    @classmethod
    def _differ(cls, value: tuple[NetworkSection, ...]) -> tuple[NetworkSection, ...]:
        names = [network.name for network in value]
        if len(set(names)) != len(names):
            raise ValueError(f"two networks have one name: {', '.join(names)}")
        return value


def load_matrix(path: Path) -> FaceMatrixRecipe:
    """Read a recipe.

    Raises:
        RecipeError: it cannot be read, is no YAML, or a field is wrong; names the field.
    """
    try:
        text = regular_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot be read: {error}", where=str(path), hint="it must be a YAML file"
        ) from error
    fields = parse_document(text, str(path)).value
    if fields.get("kind") != KIND:
        raise RecipeError(
            f"is no recipe of a matrix: it lacks 'kind: {KIND}'",
            where=str(path),
            hint="start from the one that is shipped: face-matrix",
        )
    try:
        return FaceMatrixRecipe.model_validate(fields)
    except BitwrightError as error:  # of a part that is checked where it is defined
        where = ": ".join(part for part in (path.name, error.where) if part)
        raise RecipeError(error.message, where=where, hint=error.hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecipeError(
            f"{first['msg']}, found {first['input']!r}",
            where=f"{path.name}: {place}",
            hint=f"fields: {', '.join(FaceMatrixRecipe.model_fields)}",
        ) from error


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        form: ``original`` or ``folded``.
        method: see `METHODS`.
    """

    network: str
    form: str
    method: str

    @property
    def key(self) -> str:
        return f"{self.network}/{self.form}/{self.method}"


ORIGINAL, FOLDED = "original", "folded"
#: The rows of a network. "converted" went through another framework's files and back; "dfp8" has
#: no search, all widths are 8; "e4m3" has the published format, "minifloat" the chosen one.
METHODS = (
    (ORIGINAL, "float"),
    (ORIGINAL, "converted"),
    (ORIGINAL, "minifloat"),
    (ORIGINAL, "dfp"),
    (ORIGINAL, "dfp8"),
    (ORIGINAL, "pow2"),
    (FOLDED, "float"),
    (FOLDED, "minifloat"),
    (FOLDED, "e4m3"),
    (FOLDED, "dfp"),
    (FOLDED, "dfp8"),
    (FOLDED, "pow2"),
    (FOLDED, "kmeans-network"),
    (FOLDED, "kmeans-group"),
    (FOLDED, "kmeans-layer"),
    (FOLDED, "hybrid"),
)
#: Rows that have no quantizer, so that both halves are one.
EXACT = ("float", "converted")
#: Rows that only this package has.
OWN = ("e4m3",)


def rows_of(recipe: FaceMatrixRecipe) -> tuple[Row, ...]:
    """All rows, network by network."""
    return tuple(Row(n.name, form, method) for n in recipe.networks for form, method in METHODS)
