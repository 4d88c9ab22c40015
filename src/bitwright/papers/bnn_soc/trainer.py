# SPDX-License-Identifier: Apache-2.0
"""The document's sample-wise trainer (spec 2.8 to 2.15) in C; `reference.py` has it in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.native import INT64, POINTER, Program
from bitwright.papers.bnn_soc.numbers import Floats
from bitwright.papers.bnn_soc.settings import Activation, Kernel, Settings, initial_weights

_WORD = 64


def _ints(names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names.split()]


def _pointers(names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names.split()]


class CUnits(ctypes.Structure):
    """``bw_units``."""

    _fields_ = [*_ints("count stride"), *_pointers("value output sum delta code bits mask")]


class CLayer(ctypes.Structure):
    """``bw_layer``."""

    _fields_ = [
        *_ints("outputs inputs stride"),
        *_pointers("weight bias bits code sign"),
        ("rate_scale", ctypes.c_double),
        ("sum_scale", ctypes.c_double),
        ("error_scale", ctypes.c_double),
    ]


class CNetwork(ctypes.Structure):
    """``bw_network``."""

    _fields_ = [
        *_ints("layers binary kernel forward backward at_sum float_back"),
        *_ints("stochastic_weights stochastic_units clip exaggerate_scaled"),
        *((n, ctypes.c_double) for n in ("exaggeration", "drop_input", "drop_hidden")),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_int64),
        *_pointers("input_value layer units"),
    ]


TRAINER = Program(
    name="bnn-trainer",
    package="bitwright.papers.bnn_soc",
    sources=("trainer.c", "forward.c", "backward.c"),
    headers=("network.h",),
    functions={
        "bw_train": (None, POINTER, POINTER, POINTER, POINTER, POINTER, INT64, INT64),
        "bw_refresh": (None, POINTER),
        "bw_classify": (None, POINTER, POINTER, INT64, POINTER),
    },
    values={
        "bw_network_size": ctypes.sizeof(CNetwork),
        "bw_layer_size": ctypes.sizeof(CLayer),
        "bw_units_size": ctypes.sizeof(CUnits),
    },
    # The same bits as numpy: no fused multiply-add. -O3 may not reorder sums of floats.
    flags=("-ffp-contract=off",),
    threads=True,
)


class Trainer:
    """A network under training.

    Attributes:
        settings: what it is.
        weights: float masters, (outputs, inputs) each: views of what the C program trains.
        biases: one a unit, or None.

    Raises:
        ToolError: no C compiler works here.
    """

    def __init__(
        self,
        settings: Settings,
        weights: Sequence[Floats] | None = None,
        *,
        threads: int = 1,
        library: ctypes.CDLL | None = None,
    ) -> None:
        self.settings, self.threads = settings, threads
        self._library = library if library is not None else TRAINER.require()
        self._kept: list[NDArray[Any]] = []  # memory that the structures point into
        self._units = (CUnits * len(settings.sizes))(*map(self._new_units, settings.sizes))
        self.weights: list[Floats] = []
        self.biases: list[Floats | None] = []
        given = list(weights) if weights is not None else initial_weights(settings)
        self._layers = (CLayer * settings.layers)(
            *(self._new_layer(number, weight) for number, weight in enumerate(given))
        )
        self._net = self._new_network()
        self.refresh()

    def _memory(self, shape: int | tuple[int, ...], kind: Any) -> int:
        self._kept.append(np.zeros(shape, dtype=kind))
        return int(self._kept[-1].ctypes.data)

    def _new_units(self, count: int) -> CUnits:
        stride = -(-count // _WORD) * _WORD
        floats = [self._memory(stride, np.float32) for _ in range(4)]
        words = [self._memory(stride // _WORD, np.uint64) for _ in range(2)]
        return CUnits(count, stride, *floats, self._memory(stride, np.int8), *words)

    def _new_layer(self, number: int, weight: Floats) -> CLayer:
        s = self.settings
        inputs, outputs = s.sizes[number : number + 2]
        if weight.shape != (outputs, inputs):
            raise DataError(
                f"expected weights ({outputs}, {inputs}), got {weight.shape}",
                where=f"layer {number + 1}",
            )
        stride = -(-inputs // _WORD) * _WORD
        found = CLayer(outputs, inputs, stride, self._memory((outputs, stride), np.float32))
        self.weights.append(self._kept[-1][:, :inputs])
        self.weights[-1][:] = weight
        self.biases.append(None)
        if s.bias:
            found.bias = self._memory(outputs, np.float32)
            self.biases[-1] = self._kept[-1]
        found.bits = self._memory((outputs, stride // _WORD), np.uint64)
        if s.binary and s.kernel == "xnor8":
            found.code = self._memory((outputs, stride), np.int8)
        if s.binary and s.kernel == "multiply":
            found.sign = self._memory((outputs, stride), np.float32)
        found.rate_scale = s.rate_scale_of(number)
        found.sum_scale = s.sum_scale_of(number)
        found.error_scale = s.error_scale_of(number)
        return found

    def _new_network(self) -> CNetwork:
        s = self.settings
        self._kept.append(s.input_values())
        return CNetwork(
            layers=s.layers,
            binary=s.binary,
            kernel=Kernel[s.kernel.upper()],
            forward=Activation[s.act_forward.upper()],
            backward=Activation[s.act_backward.upper()],
            at_sum=s.deriv_at == "preactivation",
            float_back=s.backprop_weights == "float",
            stochastic_weights=s.weight_binarization == "stochastic",
            stochastic_units=s.activation_binarization == "stochastic",
            clip=s.clip,
            exaggerate_scaled=s.exaggeration_rate == "layer",
            exaggeration=s.exaggeration,
            drop_input=s.drop_input,
            drop_hidden=s.drop_hidden,
            seed=s.seed,
            step=0,
            input_value=self._kept[-1].ctypes.data,
            layer=ctypes.addressof(self._layers),
            units=ctypes.addressof(self._units),
        )

    @property
    def step(self) -> int:
        """Samples trained on so far."""
        return int(self._net.step)

    def refresh(self) -> None:
        """The binary copies anew, after masters were set from outside."""
        self._library.bw_refresh(ctypes.byref(self._net))

    def train(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        order: NDArray[np.int64],
        rates: NDArray[np.float64],
    ) -> None:
        """One update for each of ``order``.

        Args:
            images: (N, pixels) or (N, H, W), as many pixels as there are inputs.
            labels: (N,), of the classes.
            order: indices of samples.
            rates: the learning rate of each.

        Raises:
            DataError: sizes do not match.
        """
        images = self._images(images)
        labels = np.ascontiguousarray(labels, dtype=np.int64)
        order = np.ascontiguousarray(order, dtype=np.int64)
        rates = np.ascontiguousarray(rates, dtype=np.float64)
        classes = self.settings.sizes[-1]
        if len(labels) != len(images) or len(order) != len(rates):
            raise DataError(
                f"{len(images)} images, {len(labels)} labels; {len(order)} cycles, "
                f"{len(rates)} rates",
                where="training samples",
            )
        if order.size and not 0 <= order.min() <= order.max() < len(images):
            raise DataError(f"{len(images)} samples have no such index", where="order")
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(f"labels must be 0 to {classes - 1}", where="training samples")
        self._library.bw_train(
            ctypes.byref(self._net),
            *(array.ctypes.data for array in (images, labels, order, rates)),
            len(order),
            self.threads,
        )

    def _images(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        flat = np.ascontiguousarray(images.reshape(len(images), -1))
        if flat.dtype != np.uint8 or flat.shape[1] != self.settings.sizes[0]:
            raise DataError(
                f"expected images of {self.settings.sizes[0]} bytes, got {flat.shape[1]} of "
                f"{flat.dtype}",
                where="images",
            )
        return flat

    def sums(self, images: NDArray[np.uint8]) -> Floats:
        """Scaled sums of the output units, (N, classes); nothing is dropped or drawn."""
        flat = self._images(images)
        found = np.zeros((len(flat), self.settings.sizes[-1]), dtype=np.float32)
        draws, self._net.stochastic_weights = self._net.stochastic_weights, 0
        if draws:
            self.refresh()
        arguments = (ctypes.byref(self._net), flat.ctypes.data, len(flat), found.ctypes.data)
        self._library.bw_classify(*arguments)
        self._net.stochastic_weights = draws
        if draws:
            self.refresh()  # the numbers depend on the step alone: the same weights come again
        return found
