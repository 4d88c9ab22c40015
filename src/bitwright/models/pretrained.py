# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that come with the package. No torch at import time.

An entry is two files in the folder ``bitwright/pretrained``: ``NAME.json`` (what it is, how it was
trained, what it reaches) and ``NAME.safetensors`` (the numbers). A larger file may lie beside the
package instead: then the entry names addresses, and the file is fetched once into the user's cache.
Wherever it comes from, its SHA-256 is checked whenever it is used.

    weights: pretrained            # in a recipe's model: the entry of this model and data set
    load_pretrained("digits-cnn")  # in Python (models.factory): the model by the entry's name
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bitwright.base.errors import DataError, RecipeError
from bitwright.models.catalog import ModelSpec, list_models

if TYPE_CHECKING:
    from torch import nn

STORE = Path(__file__).resolve().parents[1] / "pretrained"
SCHEMA = 1
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Pretrained(BaseModel):
    """One checkpoint of a float network.

    Attributes:
        name: of the entry.
        model, options: as a recipe names them.
        data: the data set it was trained on.
        image_shape: (H, W, C).
        classes: length of the score vector.
        file: in the entry's folder, or what ``urls`` give.
        bytes, sha256: of the file.
        urls: where the file is fetched from if it is not beside the entry.
        dtype: of the numbers in the file; the model computes in float32 always.
        parameters: trainable ones.
        accuracy: top-1 share of the test images, float, measured on the numbers in the file.
        test_images: how many.
        test_digest: hash of which images of the source those are: other images may be among those
            that it was trained on.
        command: the exact command that made it, run in the folder of the package's source.
        seed: of data cuts, first weights and training.
        validation: share of the training images that was kept apart.
        training: the settings of the float training (`TrainConfig`) that are not defaults; None if
            ``command`` is no training of a recipe.
        history: a row an epoch; ``kept_epoch`` is the one whose weights these are.
        data_digest: hash of all images and labels.
        data_note: what is special about the copy of the data.
        versions: of the software that trained it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = SCHEMA
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=80)]
    model: str
    options: dict[str, Any] = Field(default_factory=dict)
    data: str
    image_shape: tuple[int, int, int]
    classes: int
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors$")]
    bytes: Annotated[int, Field(ge=1)]
    sha256: _Sha256
    urls: tuple[str, ...] = ()
    dtype: Literal["float32", "float16"] = "float32"
    parameters: int
    accuracy: Annotated[float, Field(ge=0, le=1)]
    test_images: int
    test_digest: str
    command: str
    seed: int
    validation: float
    training: dict[str, Any] | None = None
    history: tuple[dict[str, Any], ...] = ()
    kept_epoch: int = 0
    data_digest: str
    data_note: str = ""
    versions: dict[str, str]
    license: Literal["Apache-2.0"] = "Apache-2.0"

    @property
    def spec(self) -> ModelSpec:
        """The model without weights."""
        return ModelSpec(name=self.model, options=self.options)

    @property
    def label(self) -> str:
        """The model with its options, for messages."""
        options = ", ".join(f"{key}: {value}" for key, value in sorted(self.options.items()))
        return f"{self.model} ({options})" if options else self.model


def list_pretrained() -> tuple[Pretrained, ...]:
    """Every checkpoint that comes with the package, by name.

    Raises:
        DataError: an entry is damaged.
    """
    return read_entries(STORE)


def named(name: str) -> Pretrained:
    """The entry of this name.

    Raises:
        DataError: there is none.
    """
    for entry in list_pretrained():
        if entry.name == name:
            return entry
    raise DataError(
        f"no pretrained weights are called {name!r}",
        hint=f"there are: {', '.join(e.name for e in list_pretrained()) or 'none'}",
    )


def matching(
    spec: ModelSpec, image_shape: Sequence[int], classes: int | None, data: str | None = None
) -> tuple[Pretrained, ...]:
    """The entries of a model, whatever name and spelling of options it goes by.

    Args:
        data: name of the data set; None: any.
    """
    wanted = _identity(spec)
    return tuple(
        entry
        for entry in list_pretrained()
        if _identity(entry.spec) == wanted
        and entry.image_shape == tuple(image_shape)
        and entry.classes == classes
        and data in (None, entry.data)
    )


def find_pretrained(
    spec: ModelSpec, image_shape: Sequence[int], classes: int | None, data: str | None = None
) -> Pretrained:
    """The one entry that ``weights: pretrained`` means.

    Raises:
        RecipeError: there is none, or without ``data`` more than one.
    """
    found = matching(spec, image_shape, classes, data)
    if len(found) == 1:
        return found[0]
    asked = f"{spec.name}{_told(spec.options)} for {classes} classes of images {tuple(image_shape)}"
    asked += f" of {data}" if data is not None else ""
    if found:
        raise RecipeError(
            f"several pretrained weights fit {asked}: {', '.join(e.name for e in found)}",
            where="model.weights",
            hint="name the data set",
        )
    there = "; ".join(f"{e.label} on {e.data}" for e in list_pretrained()) or "none"
    raise RecipeError(
        f"no pretrained weights for {asked}",
        where="model.weights",
        hint=f"there are: {there}. Leave `weights` out to train from nothing, or name a file",
    )


def weights_file(entry: Pretrained) -> Path:
    """The entry's file, there and checked.

    Raises:
        DataError: it is missing and cannot be fetched, or has another checksum.
    """
    path = STORE / entry.file
    if not path.is_file():
        if not entry.urls:
            raise DataError(
                "does not exist", where=str(path), hint="install the package again: it is cut short"
            )
        from bitwright.data.files import cache_path, download

        path = download(entry.urls, cache_path("pretrained", entry.file), entry.sha256)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry.sha256:
        hint = "delete it: it is then fetched again" if entry.urls else "install the package again"
        raise DataError(
            f"is damaged: its SHA-256 is {found}, expected {entry.sha256}",
            where=str(path),
            hint=hint,
        )
    return path


def load_into(model: nn.Module, entry: Pretrained) -> None:
    """Load an entry's weights into a model that is built already, all or none.

    Raises:
        DataError: the file is missing, damaged, or of another network.
    """
    from bitwright.models.tensors import fill_state, load_tensors

    path = weights_file(entry)
    tensors, _ = load_tensors(path)
    wide = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
    fill_state(model, wide, str(path))


def _identity(spec: ModelSpec) -> str:
    """What a name of the zoo builds: two names of one network have one identity."""
    for info in list_models():
        if info.name == spec.name:
            return json.dumps([info.factory, {**info.options, **spec.options}], sort_keys=True)
    return json.dumps([spec.name, spec.options], sort_keys=True, default=str)


def _told(options: Mapping[str, Any]) -> str:
    return f" {dict(options)}" if options else ""


@cache
def read_entries(store: Path) -> tuple[Pretrained, ...]:
    """Every entry of a folder, by name; read once.

    Raises:
        DataError: one is damaged.
    """
    return tuple(read_entry(path) for path in sorted(store.glob("*.json")))


def read_entry(path: Path) -> Pretrained:
    """An entry from its JSON file.

    Raises:
        DataError: it cannot be read, or is of another version.
    """
    try:
        return Pretrained.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(
            f"is no entry of pretrained weights: {error}",
            where=str(path),
            hint="install the package again",
        ) from error
