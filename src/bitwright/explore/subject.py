# SPDX-License-Identifier: Apache-2.0
"""What a verb of the laboratory works on: a trained float model with its data, however named.

``RUN``: a run directory whose step ``train`` is done. ``MODEL``: a file of another framework, or a
name of the zoo or ``package.module:factory`` with ``--weights``; both with ``--data``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import RecipeError, RunError
from bitwright.data import Dataset, load_dataset
from bitwright.data.spec import DATASETS, DatasetSpec
from bitwright.models.catalog import MODELS, ModelSpec
from bitwright.pipeline.run_files import check_run_folder
from bitwright.pipeline.steps.fingerprint import importable
from bitwright.pipeline.steps.workspace import Workspace, step_folder

if TYPE_CHECKING:
    from torch import nn

    from bitwright.data import DataSplits
    from bitwright.explore.search.metrics import Metric
    from bitwright.papers.faces.pairs import FaceProtocol

ORL = "orl"
#: What `bitwright import` calls a float model in its folder.
IMPORTED = "model.safetensors"
METRICS = ("top1", "agreement", "verification")
#: Images on which agreement is measured.
_AGREEMENT = 96


@dataclass(frozen=True)
class Subject:
    """A float model and the images it is searched and measured with.

    Attributes:
        name: for reports.
        model: in evaluation mode.
        train: images for calibration, in a random order.
        validation: images for choices; None where a network gives no scores.
        test: for the final figure.
        protocol: pairs of faces, for a network of embeddings.
        quant: of the recipe: format of the input, threshold bits.
    """

    name: str
    model: nn.Module
    train: Dataset
    validation: Dataset | None = None
    test: Dataset | None = None
    protocol: FaceProtocol | None = None
    quant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        height, width, channels = self.train.image_shape
        return channels, height, width

    def metric(
        self, name: str | None = None, *, iterations: int | None = None, batch_size: int = 100
    ) -> Metric:
        """What a search maximises, on images that the final figure is not taken from.

        Args:
            name: ``top1``; ``verification`` (on view 1); ``agreement`` of the output with the
                float network's. None: top1 for classifiers, else verification.
            iterations: batches of top1 at most.

        Raises:
            RecipeError: unknown, or the data has no labels for it.
        """
        from bitwright.explore.search.metrics import EmbeddingAgreement, Top1, Verification

        wanted = name or ("top1" if self.protocol is None else "verification")
        if wanted not in METRICS:
            raise RecipeError(
                f"unknown metric {wanted!r}", where="--metric", hint=f"one of {', '.join(METRICS)}"
            )
        if wanted == "top1" and self.validation is not None:
            return Top1(self.validation, iterations, batch_size)
        if wanted == "verification" and self.protocol is not None:
            return Verification(_first_view(self.protocol))
        if wanted == "agreement":
            import torch

            count = min(_AGREEMENT, len(self.train))
            inputs = torch.from_numpy(self.train.take(range(len(self.train))[-count:]).reals())
            return EmbeddingAgreement.of(self.model, inputs)
        raise RecipeError(
            f"the data has nothing to measure {wanted} with",
            where="--metric",
            hint="agreement needs no labels; top1 needs classes, verification pairs of faces",
        )

    def final(self, model: nn.Module) -> dict[str, float]:
        """Figures of a model on images that no choice was made on."""
        if self.protocol is not None:
            from bitwright.papers.faces.verification import verification_accuracy

            found = verification_accuracy(model, self.protocol)
            return {"verification accuracy": found.accuracy, "standard error": found.stderr}
        from bitwright.train import evaluate

        if self.test is None:
            return {}
        return {"test accuracy": evaluate(model, self.test).accuracy}


def find_subject(
    name: str,
    *,
    data: str | None = None,
    weights: Path | None = None,
    input_shape: tuple[int, int, int] | None = None,
    seed: int = 0,
) -> Subject:
    """The subject of a name; see the module.

    Args:
        data: a data set by name, ``orl``, or a folder or archive of images; for a run, where its
            own data lies.
        weights: of a model that is named.
        input_shape: (H, W, C), where neither file nor data say it.
        seed: of the order of calibration images and of the cuts of the data.

    Raises:
        RecipeError: there is no such thing, or data or weights are missing.
        RunError: the run has no trained model yet.
        DataError: files are damaged, or of another network.
        ModelError: the model cannot be built.
    """
    place = Path(name).expanduser()
    if (place / IMPORTED).is_file():  # a folder that `bitwright import` made
        place, name = place / IMPORTED, str(place / IMPORTED)
    if place.is_dir():
        return _of_run(place, data, seed)
    if not (ModelSpec(name=name).is_file or ":" in name or _is_zoo(name)):
        raise RecipeError(
            f"{name!r} is no run directory, model file or name of a model",
            hint="a folder that `bitwright build` made; a .prototxt, .h5, .keras or .safetensors "
            "file; a name of `bitwright list models`; or package.module:factory",
        )
    if data is None:
        raise RecipeError(
            "a model needs data",
            where="--data",
            hint=f"{', '.join(info.name for info in DATASETS[:-1])}, {ORL}, or a folder of images",
        )
    return _of_model(name, data, weights, input_shape, seed)


def _is_zoo(name: str) -> bool:
    return any(info.name == name for info in MODELS)


def _of_run(place: Path, data: str | None, seed: int) -> Subject:
    from bitwright.pipeline.recipe import load_recipe
    from bitwright.pipeline.steps.train import trained_model

    header = check_run_folder(place)
    if header is None:
        raise RunError("is an empty folder", where=str(place), hint="run `bitwright build` first")
    base = Path(str(header.get("recipe_dir", place)))
    where = None if data is None else Path(data)
    recipe = load_recipe(place / "recipe.yaml", [], data_dir=where, base_dir=base)
    folder = place / step_folder("train")
    if not (folder / "step.json").is_file():
        raise RunError(
            "has no trained model yet", where=str(place), hint=f"bitwright train {place}"
        )
    work = Workspace(recipe)
    kept: dict[str, Any] = {
        k: recipe.quant[k] for k in ("input", "threshold_bits") if k in recipe.quant
    }
    return _with_splits(recipe.name, trained_model(work, folder), work.data, seed, kept)


def _of_model(
    name: str,
    data: str,
    weights: Path | None,
    input_shape: tuple[int, int, int] | None,
    seed: int,
) -> Subject:
    from bitwright.models import build_model

    spec = ModelSpec(name=name, weights=weights)
    if weights is None and not spec.is_file:
        raise RecipeError(
            f"{name!r} has no trained weights",
            where="--weights",
            hint="name a file: .pt, .safetensors, .h5 or .caffemodel; or a run directory instead",
        )
    splits = None if data == ORL else load_dataset(_data_spec(data), None, seed)
    shape = splits.image_shape if splits is not None else input_shape or (80, 80, 3)
    with importable((Path.cwd(),)):
        model = build_model(spec, None if splits is None else splits.num_classes, shape).eval()
    if splits is None:
        return _with_faces(name, model, shape, seed)
    return _with_splits(Path(name).stem, model, splits, seed, {})


def _data_spec(data: str) -> DatasetSpec:
    if any(data == info.name for info in DATASETS if info.name != "folder"):
        return DatasetSpec(name=data)
    place = Path(data).expanduser()
    if not place.exists():
        known = ", ".join([info.name for info in DATASETS[:-1]] + [ORL])
        raise RecipeError(
            f"no data set or folder {data!r}", where="--data", hint=f"{known}, or a folder"
        )
    return DatasetSpec(name="folder", path=place)


def _with_splits(
    name: str, model: nn.Module, splits: DataSplits, seed: int, quant: Mapping[str, Any]
) -> Subject:
    return Subject(
        name,
        model.eval(),
        _shuffled(splits.train, seed),
        splits.validation,
        splits.test,
        quant=quant,
    )


def _with_faces(name: str, model: nn.Module, shape: tuple[int, int, int], seed: int) -> Subject:
    from bitwright.papers.faces.images import FacePreprocessing
    from bitwright.papers.faces.protocols import orl_known, orl_protocol

    how = FacePreprocessing(size=shape[0])
    known = orl_known(how=how).data
    return Subject(name, model.eval(), _shuffled(known, seed), protocol=orl_protocol(how=how))


def _shuffled(data: Dataset, seed: int) -> Dataset:
    """Calibration takes the first images: they must be of all classes."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(data))
    return data.take(order)


def _first_view(protocol: FaceProtocol) -> FaceProtocol:
    """The protocol with view 1 as its measurement too, so that choices do not see view 2."""
    return replace(protocol, view2=protocol.view1)
