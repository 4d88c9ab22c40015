# SPDX-License-Identifier: Apache-2.0
"""A teacher's scores of every training image, computed once, looked up by the image's index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.data import Dataset
from bitwright.models.common import device_of
from bitwright.models.output import Output, scores
from bitwright.train.checkpoint import load_checkpoint, save_checkpoint
from bitwright.train.evaluation import score_images
from bitwright.train.images import on_device
from bitwright.train.teachers import fingerprint

OUTPUTS = "teacher_outputs.pt"
_FIELDS = ("schema", "scores", "indices", "data", "teacher")
_SCHEMA = 1
_BATCH = 500
_HINT = "compute them anew with this data set (write_outputs)"


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Scores of the images of one data set, as they are.

    Attributes:
        scores: (N, ...) float32: outputs, of a classifier before any softmax.
        indices: (N,) int64, ``Dataset.indices`` of the images, which no split or order changes.
        data: `Dataset.digest` of the images.
        teacher: `fingerprint` of the network, or what another program calls it.
    """

    scores: Tensor
    indices: Tensor
    data: str
    teacher: str

    def of(
        self, dataset: Dataset, where: str = "teacher outputs", output: Output | None = None
    ) -> Tensor:
        """(N, ...): the outputs for a data set's images, in its order.

        Args:
            output: what they must be; by default scores of its classes.

        Raises:
            DataError: they are those of another data set.
            ModelError: they are of another number of classes.
        """
        wanted = scores(len(dataset.classes)) if output is None else output
        if not wanted.fits(tuple(self.scores.shape[1:])):
            given = wanted.said(tuple(self.scores.shape[1:]))
            raise ModelError(
                f"holds scores of {given}, but {dataset.name} has {wanted.said(wanted.shape)}",
                where=where,
                hint="use the outputs of a teacher that was trained for the same as the student",
            )
        if self.data != dataset.digest():
            raise DataError(
                f"holds the scores of another data set than {dataset.name} (or of another split "
                "of it: their hashes differ)",
                where=where,
                hint=_HINT,
            )
        rows = {int(index): row for row, index in enumerate(self.indices)}
        try:
            chosen = [rows[int(index)] for index in dataset.indices]
        except KeyError as error:
            raise DataError(f"holds no scores of image {error}", where=where, hint=_HINT) from None
        return self.scores[torch.tensor(chosen, dtype=torch.int64)]


def teacher_outputs(teacher: nn.Module, dataset: Dataset) -> TeacherOutputs:
    """Run a teacher in evaluation mode over a data set, where the teacher is."""
    images, _ = on_device(dataset, device_of(teacher))
    found = score_images(teacher, images, dataset.scale, _BATCH).cpu()
    indices = torch.tensor(dataset.indices, dtype=torch.int64)
    return TeacherOutputs(found, indices, dataset.digest(), fingerprint(teacher))


def write_outputs(path: Path, outputs: TeacherOutputs) -> None:
    """Write a table for `read_outputs`, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    save_checkpoint(path, {"schema": _SCHEMA, **vars(outputs)})


def read_outputs(path: Path) -> TeacherOutputs:
    """Read what `write_outputs` wrote; nothing in the file is executed.

    Raises:
        DataError: the file is missing, broken, or holds something else.
    """
    content = load_checkpoint(path, fields=_FIELDS)
    given, indices = content["scores"], content["indices"]
    fault = None
    if type(content["schema"]) is not int or content["schema"] != _SCHEMA:
        fault = f"has schema {content['schema']!r:.40}, this version reads {_SCHEMA}"
    elif not (isinstance(content["data"], str) and isinstance(content["teacher"], str)):
        fault = "data and teacher must be text"
    elif not (isinstance(given, Tensor) and isinstance(indices, Tensor)):
        fault = "scores and indices must be tensors"
    elif (
        given.ndim < 2
        or indices.shape != given.shape[:1]
        or not given.is_floating_point()
        or indices.dtype != torch.int64
    ):
        found = f"{given.dtype} {tuple(given.shape)} and {indices.dtype} {tuple(indices.shape)}"
        fault = f"expected scores (N, classes) and indices (N,), found {found}"
    elif not torch.isfinite(given).all():
        fault = "holds scores that are no finite numbers"
    if fault is not None:
        raise DataError(fault, where=str(path), hint=_HINT)
    return TeacherOutputs(given.float(), indices, content["data"], content["teacher"])


def kept_outputs(teacher: nn.Module, dataset: Dataset, path: Path) -> TeacherOutputs:
    """The teacher's outputs from a file, if it holds just these; else computed and written there.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        outputs = read_outputs(path)
    except DataError:  # none yet, or a broken one: it is our own, so it is made anew
        outputs = None
    same = outputs is not None and outputs.teacher == fingerprint(teacher)
    if outputs is None or not same or outputs.data != dataset.digest():
        outputs = teacher_outputs(teacher, dataset)
        write_outputs(path, outputs)
    return outputs
