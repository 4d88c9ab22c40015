# SPDX-License-Identifier: Apache-2.0
"""The published weights of SkyNet, in both forms in which they are published."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.base.files import read_bytes
from bitwright.base.regular import open_regular
from bitwright.interop.hdf5 import read_hdf5
from bitwright.models.skynet import SkyNet, folded_weights

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SOURCE = "the published file is dac.weights of TomG008/SkyNet"
_COUNTER = "num_batches_tracked"


def load_skynet_weights(path: str | Path, model: SkyNet | None = None) -> SkyNet:
    """Load published weights into a SkyNet, in evaluation mode.

    Two files are understood: an HDF5 file with a data set for each key of the state dict
    (``dac.weights``; needs h5py), and a file of bare float32 numbers with the batch norm folded
    in, weight and bias of layer after layer (``weights_floating.bin``).

    Args:
        path: the file.
        model: the network to fill; by default a new one. Only a network as published fits.

    Raises:
        DataError: h5py or the file is missing, or the file is corrupt, truncated, lacks a key, has
            one too many, or holds a tensor of another size or numbers that are not finite. The
            model is then unchanged.
        ModelError: the model is no `SkyNet`.
    """
    path = Path(path)
    model = SkyNet() if model is None else model
    if not isinstance(model, SkyNet):
        raise ModelError(f"these weights are for SkyNet, not {type(model).__name__}")
    try:
        with open_regular(path) as file:
            start = file.read(len(_HDF5))
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}", where=str(path), hint=_SOURCE
        ) from None
    state = _from_hdf5(path, model) if start == _HDF5 else _from_folded(path, model)
    model.load_state_dict(state, strict=False)
    return model.eval()


def for_unit_inputs(model: SkyNet) -> SkyNet:
    """The same network for images in [0, 1], as recipes feed them, instead of in [-2, 2].

    ``(x - 0.5) / 0.25`` goes into the first convolution and its batch norm. Around the image, where
    the published network sees grey (zeros of its inputs), this one sees black: numbers within a few
    pixels of the edge differ.

    Raises:
        ModelError: the model is no `SkyNet`.
    """
    if not isinstance(model, SkyNet):
        raise ModelError(f"these weights are for SkyNet, not {type(model).__name__}")
    changed = copy.deepcopy(model)
    bundle = changed.model_p1[0]
    assert isinstance(bundle, nn.Sequential)
    conv, norm = bundle[0], bundle[1]
    with torch.no_grad():
        norm.running_mean += 2 * conv.weight.sum(dim=(1, 2, 3))
        conv.weight *= 4
    return changed


def _from_hdf5(path: Path, model: SkyNet) -> dict[str, Tensor]:
    found = read_hdf5(path, str(path))  # in a process of its own: broken files crash the library
    arrays = {name.lstrip("/"): values.astype(np.float32) for name, values in found.arrays.items()}
    expected = {k: v for k, v in model.state_dict().items() if not k.endswith(_COUNTER)}
    missing = [key for key in expected if key not in arrays]
    extra = [key for key in arrays if key not in expected and not key.endswith(_COUNTER)]
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which SkyNet has not"
        count = len(missing or extra)
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise DataError(what + more, where=str(path), hint=_SOURCE)
    state = {}
    for key, wanted in expected.items():
        values = arrays[key]
        if values.shape != tuple(wanted.shape):
            raise DataError(
                f"{key!r} has the shape {values.shape}, expected {tuple(wanted.shape)}",
                where=str(path),
                hint=_SOURCE,
            )
        _require_finite(values, key, path)
        if key.endswith("running_var") and (values < 0).any():
            raise DataError(f"{key!r} holds a negative variance", where=str(path), hint=_SOURCE)
        state[key] = torch.from_numpy(values.copy())
    return state


def _from_folded(path: Path, model: SkyNet) -> dict[str, Tensor]:
    """Weight and bias of every bundle layer, then the last weight without a bias."""
    folded = folded_weights(model)
    last = next(reversed(folded))
    expected = sum(
        w.numel() + (0 if name == last else b.numel()) for name, (w, b) in folded.items()
    )
    content = read_bytes(path)
    if len(content) != 4 * expected:
        raise DataError(
            f"is no file of SkyNet weights: neither HDF5 nor {4 * expected} bytes of folded "
            f"float32 weights, but {len(content)} bytes",
            where=str(path),
            hint=_SOURCE,
        )
    numbers = np.frombuffer(content, dtype="<f4")
    modules = dict(model.named_modules())
    state: dict[str, Tensor] = {}
    place = 0
    for name, (weight, bias) in folded.items():
        taken = numbers[place : place + weight.numel()]
        place += weight.numel()
        _require_finite(taken, f"{name}.weight", path)
        state[f"{name}.weight"] = torch.from_numpy(taken.copy()).view(weight.shape)
        if name == last:
            continue
        shift = numbers[place : place + bias.numel()]
        place += bias.numel()
        parent, _, index = name.rpartition(".")
        norm = f"{parent}.{int(index) + 1}"
        _require_finite(shift, f"{name}, its bias", path)
        state |= _plain_norm(norm, modules[norm], torch.from_numpy(shift.copy()))
    return state


def _plain_norm(name: str, norm: nn.Module, bias: Tensor) -> dict[str, Tensor]:
    """A batch norm that adds a bias and does nothing else."""
    one = torch.ones_like(bias)
    return {
        f"{name}.weight": (one.double() + norm.eps).sqrt().float(),
        f"{name}.bias": bias,
        f"{name}.running_mean": torch.zeros_like(bias),
        f"{name}.running_var": one,
    }


def _require_finite(values: NDArray[np.float32], key: str, path: Path) -> None:
    if not np.isfinite(values).all():
        raise DataError(f"{key!r} holds NaN or infinity", where=str(path), hint=_SOURCE)
