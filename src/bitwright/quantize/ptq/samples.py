# SPDX-License-Identifier: Apache-2.0
"""The calibration set: whatever the user has, as a list of checked batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.data import Dataset
from bitwright.models.common import device_of
from bitwright.models.memory import images_at_a_time
from bitwright.models.modes import evaluating

#: What every method takes: one tensor, batches of tensors, (tensor, label) pairs, or a data set.
Samples = Tensor | Dataset | Iterable[Tensor | Sequence[Tensor]]

BATCH = 64
_WHERE = "calibration set"


def calibration_batches(data: Samples, batch_size: int = BATCH) -> list[Tensor]:
    """Batches (N, ...) float32 of at most ``batch_size`` samples, on the CPU.

    Args:
        data: real inputs as the model takes them. Of pairs, as a ``DataLoader`` gives them, the
            first part counts; of a `Dataset` its ``reals()``.
        batch_size: samples a batch.

    Raises:
        DataError: it is empty, holds a single sample, samples of different shapes, integers, or
            numbers that are not finite.
    """
    if isinstance(data, Dataset):
        parts = [torch.from_numpy(data.reals())] if len(data) else []
    elif isinstance(data, Tensor):
        parts = [data]
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        parts = [_tensor(item) for item in data]
    else:
        raise DataError(
            f"must be tensors or a data set, found {type(data).__name__}",
            where=_WHERE,
            hint="a tensor (N, C, H, W), batches of such, a DataLoader or a bitwright Dataset",
        )
    parts = [_checked(part) for part in parts if part.numel()]
    count = sum(len(part) for part in parts)
    if count == 0:
        raise DataError("is empty", where=_WHERE, hint="give some hundred typical inputs")
    if count == 1:
        raise DataError(
            "holds a single sample, which says nothing about the range of others",
            where=_WHERE,
            hint="give some hundred typical inputs; no labels are needed",
        )
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(str(shape) for shape in sorted(shapes))
        raise DataError(
            f"holds samples of different shapes: {listed}",
            where=_WHERE,
            hint="crop or scale them to the size that the model is for",
        )
    own = isinstance(data, Dataset)  # numbers that nobody else has: a layer may write into them
    whole = parts[0] if own and len(parts) == 1 else torch.cat(parts)
    return list(whole.split(batch_size))


def batches_for(model: nn.Module, data: Samples, batch_size: int = BATCH) -> list[Tensor]:
    """`calibration_batches` that fit a model.

    Raises:
        DataError: they do not fit; or as `calibration_batches`.
        ModelError: as `check_fit`.
    """
    batches = calibration_batches(data, batch_size)
    check_fit(model, batches)
    return batches


def at_a_time(model: nn.Module, batches: Sequence[Tensor]) -> int:
    """Samples that may pass a model at a time: a batch is passed in parts where it is large for the
    machine. What is drawn of it by chance is drawn of all of it, on any machine.
    """
    return images_at_a_time(model, tuple(batches[0].shape[1:]), max(map(len, batches)))


def passed(layer: nn.Module, batch: Tensor, most: int) -> Tensor:
    """What a layer gives for a batch, of which it gets so many samples at a time."""
    parts = [layer(part) for part in batch.split(most)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def sample_count(batches: Sequence[Tensor]) -> int:
    """Samples in all batches."""
    return sum(len(batch) for batch in batches)


def check_fit(model: nn.Module, batches: Sequence[Tensor], *, anywhere: bool = False) -> None:
    """Run one sample through a model in evaluation mode; it is left as it was.

    Args:
        anywhere: the model may be on any device; what fits weights to data runs on the CPU.

    A model that says what it is for, in an attribute ``sample_shape`` (`build_model` sets it), gets
    no other: a network that ends in a global pool would compute something for images of any size.

    Raises:
        DataError: its shape does not fit the model, or is not the one that the model is for.
        ModelError: the model holds NaN or infinity, or gives it for this sample.
    """
    refuse_non_finite(model)
    elsewhere = {str(t.device) for t in model.state_dict().values() if t.device.type != "cpu"}
    if elsewhere and not anywhere:
        raise ModelError(
            f"is on {', '.join(sorted(elsewhere))}",
            where=type(model).__name__,
            hint="post-training methods run on the CPU: call model.cpu() first",
        )
    # A copy: the model may write into what it gets.
    sample = batches[0][:1].to(device_of(model), copy=True)
    meant, found = getattr(model, "sample_shape", None), tuple(sample.shape[1:])
    if meant is not None and tuple(meant) != found:
        raise DataError(
            f"holds samples of shape {found}, and the model is for {tuple(meant)}",
            where=_WHERE,
            hint="crop or scale them to that size, as for training",
        )
    try:
        with evaluating(model):
            scores = model(sample)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise DataError(
            f"a sample of shape {tuple(sample.shape[1:])} does not pass the model: {error}",
            where=_WHERE,
            hint="images are (N, C, H, W), as the model takes them",
        ) from error
    if isinstance(scores, Tensor) and not bool(torch.isfinite(scores).all()):
        raise ModelError(
            "gives NaN or infinity for a calibration sample",
            where=type(model).__name__,
            hint="its weights are too large, or the samples are not scaled as in training",
        )


def refuse_non_finite(model: nn.Module) -> None:
    """Refuse a model with NaN or infinite weights.

    Raises:
        ModelError: naming each tensor that holds one.
    """
    wrong = [
        name
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
    ]
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise ModelError(
            f"{shown} hold{'s' if len(wrong) == 1 else ''} NaN or infinity",
            where=type(model).__name__,
            hint="the training has diverged, or the weights file is damaged",
        )


def _tensor(item: Tensor | Sequence[Tensor]) -> Tensor:
    first = item[0] if isinstance(item, list | tuple) and len(item) else item
    if not isinstance(first, Tensor):
        raise DataError(
            f"a batch must be a tensor or a (tensor, labels) pair, found {type(first).__name__}",
            where=_WHERE,
            hint="torch.from_numpy(array) makes one of an array",
        )
    return first


def _checked(part: Tensor) -> Tensor:
    if part.dim() < 2:
        raise DataError(
            f"a batch has the shape {tuple(part.shape)}; the first axis counts the samples",
            where=_WHERE,
            hint="images are (N, C, H, W)",
        )
    if not part.is_floating_point():
        raise DataError(
            f"holds {str(part.dtype).removeprefix('torch.')} numbers, not reals",
            where=_WHERE,
            hint="scale the pixels as for the model: Dataset.reals() does it",
        )
    if not all(bool(torch.isfinite(some).all()) for some in part.split(BATCH)):
        raise DataError("holds NaN or infinity", where=_WHERE, hint="remove the samples that do")
    return part.detach().to("cpu", torch.float32)
