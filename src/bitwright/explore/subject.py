# SPDX-License-Identifier: Apache-2.0
"""What searches and comparisons work on: a trained float model with its data, however named.

``RUN``: a run directory whose step ``train`` is done. ``MODEL``: a file of another framework, or a
name of the zoo or ``package.module:factory`` with ``--weights``; both with ``--data``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import DataError, RecipeError
from bitwright.base.folders import own_file
from bitwright.base.plugins import load_attribute, load_plugin, own_code, plugged
from bitwright.base.store import content_key
from bitwright.base.trust import importable, is_plugin, module_folders
from bitwright.data import Dataset, load_dataset
from bitwright.data.spec import DATASETS, DatasetSpec
from bitwright.explore.measuring import Benchmark, Outcome
from bitwright.models.catalog import PRETRAINED, ModelSpec
from bitwright.pipeline.export_network import trained_run
from bitwright.pipeline.inspection.inspect import is_by_name
from bitwright.pipeline.run_files import MODEL, check_only_ours

if TYPE_CHECKING:
    from torch import nn

    from bitwright.data import DataSplits
    from bitwright.tasks import Task

_BATCH = 250


@dataclass(frozen=True)
class Subject:
    """A float model and the images it is searched and measured with.

    Attributes:
        name: for reports.
        model: in evaluation mode.
        train: images for calibration, in a random order.
        validation: images for choices; None where a network gives no scores.
        test: for the final figure.
        benchmark: takes the place of validation and test, for a network that gives no scores.
        quant: of the recipe: format of the input, threshold bits.
        batch_size: images a batch, where a metric is measured.
        at_a_time: images that pass at a time, where the test images are measured.
        task: what the network is for.
        measured_by: hash of what says it: the run's task, the user's own code in it; empty if
            nobody has said.
    """

    name: str
    model: nn.Module
    train: Dataset
    validation: Dataset | None = None
    test: Dataset | None = None
    benchmark: Benchmark | None = None
    quant: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 100
    at_a_time: int = _BATCH
    task: Task | None = None
    measured_by: str = ""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one input as the model takes it: (C, H, W), (C, L) or (F,)."""
        return self.train.sample_shape

    def measure(self, model: nn.Module, limit: int | None = None) -> Outcome:
        """Measure a model on the images (or pairs) that no choice was made on.

        Args:
            limit: images at most, from the first; a benchmark is always whole.

        Raises:
            DataError: there are no such images.
        """
        if self.benchmark is not None:
            return self.benchmark.measure(model)
        if self.test is None:
            raise DataError(
                "has no test images", where=self.name, hint="name data with a test part: --data"
            )
        import numpy as np

        from bitwright.train import evaluate

        count = len(self.test) if limit is None else min(limit, len(self.test))
        part = self.test.take(range(count))
        found = evaluate(model, part, batch_size=self.at_a_time, task=self.its_task).first
        words = (found.metric.name, found.metric.unit)
        return Outcome(found.summary, found.known, np.empty(0), *words)

    @property
    def its_task(self) -> Task:
        """What the network is for; classification where nobody has said."""
        from bitwright.tasks import CLASSIFICATION

        return CLASSIFICATION if self.task is None else self.task

    def final(self, model: nn.Module) -> dict[str, float]:
        """Figures of a model on images that no choice was made on."""
        if self.benchmark is None and self.test is None:
            return {}
        found = self.measure(model)
        if self.benchmark is None:
            return {f"test {found.kind}": found.accuracy.value}
        error = {} if found.accuracy.error is None else {"standard error": found.accuracy.error}
        return {found.kind: found.accuracy.value, **error}


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
        data: a data set or benchmark by name, a folder or archive of images, or
            ``package.module:function`` of the user's own benchmark (`base.plugins.Plugin`); for a
            run, where its own data lies.
        weights: of a model that is named; ``pretrained`` for those that come with the package.
        input_shape: (H, W, C), where neither file nor data say it.
        seed: of the order of calibration images and of the cuts of the data.

    Raises:
        RecipeError: there is no such thing, or data or weights are missing.
        RunError: the run has no trained model yet; the model of an import is a link out of it.
        DataError: files are damaged, or of another network.
        ModelError: the model cannot be built, or takes more memory than there is.
    """
    place = Path(name).expanduser()
    if (place / MODEL).is_file():  # a folder that `bitwright import` made
        place = own_file(place, MODEL)
        name = str(place)
    if place.is_dir():
        if is_by_name(name):
            check_only_ours(name, "a model of the zoo")
        return _of_run(place, data, seed)
    if not (ModelSpec(name=name).is_file or is_by_name(name)):
        raise RecipeError(
            f"{name!r} is no run directory, model file or name of a model",
            hint="a folder that `bitwright build` made; a .prototxt, .h5, .keras or .safetensors "
            "file; a name of `bitwright list models`; or package.module:factory",
        )
    if data is None:
        raise RecipeError(
            "a model needs data",
            where="--data",
            hint=f"{_known_data()}, or a folder of images",
        )
    return _of_model(name, data, weights, input_shape, seed)


def _of_run(place: Path, data: str | None, seed: int) -> Subject:
    work, model = trained_run(place, None if data is None else Path(data))
    quant = work.quant
    kept = {k: quant[k] for k in ("input", "threshold_bits") if k in quant}
    subject = _with_splits(work.recipe.name, model, work.data, seed, kept)
    task = work.recipe.resolved()["task"]
    known = content_key(task, own_code(task, work.module_folders))
    return replace(subject, task=work.task, measured_by=known)


def _of_model(
    name: str,
    data: str,
    weights: Path | None,
    input_shape: tuple[int, int, int] | None,
    seed: int,
) -> Subject:
    given = PRETRAINED if str(weights) == PRETRAINED else weights
    spec = ModelSpec(name=name, weights=given)
    if weights is None and not spec.is_file:
        raise RecipeError(
            f"{name!r} has no trained weights",
            where="--weights",
            hint="name a file: .pt, .safetensors, .h5 or .caffemodel; `pretrained`, for those of "
            "`bitwright list pretrained`; or a run directory instead",
        )
    benchmark = _benchmark(data)
    if benchmark is None:
        splits = load_dataset(_data_spec(data), None, seed)
        model = _built(spec, splits.num_classes, splits.image_shape, data, len(splits.train))
        return _with_splits(Path(name).stem, model, splits, seed, {})
    known, figure = benchmark(input_shape)
    model = _built(spec, None, known.image_shape, data, len(known))
    own = content_key(own_code(data, module_folders()))
    made = Subject(name, model, _shuffled(known, seed), benchmark=figure, measured_by=own)
    return _in_batches(made)


def _built(
    spec: ModelSpec, classes: int | None, shape: tuple[int, int, int], data: str, images: int
) -> nn.Module:
    """The model, if there is memory for the images that pass it at a time."""
    from bitwright.interop.model_files import model_from_spec
    from bitwright.models.memory import check_memory, images_at_a_time

    with importable():
        model = model_from_spec(spec, classes, shape, data=data).eval()
        sample = (shape[-1], *shape[:-1])
        most = images_at_a_time(model, sample, min(images, _BATCH))
        check_memory(model, sample, spec.name, most, known=not spec.is_file)
        return model


def _benchmark(
    data: str,
) -> Callable[[tuple[int, int, int] | None], tuple[Dataset, Benchmark]] | None:
    """What makes the benchmark of this name; None: the data is a data set."""
    added = plugged("benchmarks")
    if data in added:
        found: Callable[..., tuple[Dataset, Benchmark]] = load_attribute(added[data])
        return found
    return load_plugin(data, "--data") if is_plugin(data) and not Path(data).exists() else None


def _known_data() -> str:
    return ", ".join([*(info.name for info in DATASETS[:-1]), *plugged("benchmarks")])


def _data_spec(data: str) -> DatasetSpec:
    if any(data == info.name for info in DATASETS if info.name != "folder"):
        return DatasetSpec(name=data)
    place = Path(data).expanduser()
    if is_plugin(data) and not place.exists():  # as `_benchmark`: what is there is no code
        return DatasetSpec(name=data)
    if not place.exists():
        raise RecipeError(
            f"no data set or folder {data!r}",
            where="--data",
            hint=f"{_known_data()}, or a folder",
        )
    return DatasetSpec(name="folder", path=place)


def _with_splits(
    name: str, model: nn.Module, splits: DataSplits, seed: int, quant: Mapping[str, Any]
) -> Subject:
    found = Subject(
        name,
        model.eval(),
        _shuffled(splits.train, seed),
        splits.validation if len(splits.validation) else None,
        splits.test,
        quant=quant,
    )
    return _in_batches(found)


def _in_batches(subject: Subject) -> Subject:
    """With so many images at a time as there is room for."""
    from bitwright.models.memory import images_at_a_time

    most = images_at_a_time(subject.model, subject.sample_shape, _BATCH)
    return replace(subject, at_a_time=most, batch_size=min(subject.batch_size, most))


def _shuffled(data: Dataset, seed: int) -> Dataset:
    """Calibration takes the first images: they must be of all classes."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(data))
    return data.take(order)
