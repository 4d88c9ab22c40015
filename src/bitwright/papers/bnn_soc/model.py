# SPDX-License-Identifier: Apache-2.0
"""A trained network: its file, its sums by any backend, its decisions (spec 2.7, 2.15)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import BitwrightError, DataError
from bitwright.base.files import atomic_write, parse_json, read_bytes
from bitwright.base.memory import check_room
from bitwright.ir.executor.xnor import BinaryMatrix, unpack_signs
from bitwright.papers.bnn_soc.numbers import Floats, activate
from bitwright.papers.bnn_soc.packing import pack32, words_of
from bitwright.papers.bnn_soc.settings import Settings

FORMAT = "bitwright-bnn-1"
#: From the number of a layer and activations (N, inputs) to unscaled sums (N, outputs).
Product = Callable[[int, NDArray[Any]], NDArray[Any]]
#: Bytes that frames take at a time on their way through the layers, and of them a unit of one:
#: its sum, scaled, in double, its activation and its sign.
_AT_A_TIME, _A_UNIT = 1 << 28, 64
#: Classes of which anybody reads a matrix of who was taken for whom.
_MOST_CLASSES = 1000


@dataclass(frozen=True)
class Model:
    """A network that is trained.

    Attributes:
        settings: what it is, and how it was trained.
        weights: (outputs, inputs) of each layer: float masters, or +1 and -1 of a packed file.
        biases: one a unit, or None.
    """

    settings: Settings
    weights: tuple[NDArray[Any], ...]
    biases: tuple[Floats | None, ...]

    def __post_init__(self) -> None:
        """Sizes must be those of the settings; `DataError`."""
        s = self.settings
        shapes = [w.shape for w in self.weights]
        expected = [(s.sizes[i + 1], s.sizes[i]) for i in range(s.layers)]
        if shapes != expected or len(self.biases) != s.layers:
            raise DataError(f"expected weights {expected}, got {shapes}", where="model")

    def signs(self, layer: int) -> NDArray[np.int8]:
        """The binary copy of a layer's weights."""
        found = (self.weights[layer] >= 0).astype(np.int8)  # wider integers would be gigabytes
        found *= 2
        found -= 1
        return found

    def cpu(self, engine: str | None = None, threads: int = 1) -> Product:
        """Products of this processor; `BinaryMatrix` has the engines of binarized networks."""
        if not self.settings.binary:
            return lambda layer, x: x.astype(np.float32) @ self.weights[layer].T
        matrices = [BinaryMatrix(weight) for weight in self.weights]
        return lambda layer, x: matrices[layer].product(x, engine=engine, threads=threads)

    @property
    def batch(self) -> int:
        """Frames that pass at a time: fewer through wide layers, whose width only a file says."""
        return max(1, _AT_A_TIME // (_A_UNIT * max(self.settings.sizes)))

    def sums(self, images: NDArray[np.uint8], product: Product | None = None) -> Floats:
        """Scaled sums of the output units, (N, classes).

        Args:
            images: (N, H, W) or (N, pixels) of bytes.
            product: by default `cpu`.

        Raises:
            DataError: images of another size or depth, or more sums than fit into memory; see
                `judge`, which holds only some of them at a time.
        """
        s = self.settings
        flat = images.reshape(len(images), -1) if images.ndim > 1 else images[None]
        if flat.dtype != np.uint8 or flat.shape[1] != s.sizes[0]:
            raise DataError(
                f"expected images of {s.sizes[0]} bytes, got {images.shape[1:]} of {images.dtype}",
                where="images",
                hint="grey images of 8 bits, 28 x 28 for the document's networks",
            )
        product = product or self.cpu()
        said = f"sums of {len(flat)} images and {s.sizes[-1]} classes"
        check_room(4 * len(flat) * s.sizes[-1], said, "model", "give fewer images")
        found = np.empty((len(flat), s.sizes[-1]), dtype=np.float32)
        for start in range(0, len(flat), self.batch):
            some = slice(start, start + self.batch)
            found[some] = self._sums(flat[some], product)
        return found

    def _sums(self, flat: NDArray[np.uint8], product: Product) -> Floats:
        s = self.settings
        x = s.input_values()[flat]
        z = x
        for layer in range(s.layers):
            given = x.astype(np.int8) if s.binary else x
            z = np.asarray(product(layer, given), dtype=np.float32)
            z = z / np.float32(s.sum_scale_of(layer))
            bias = self.biases[layer]
            if bias is not None:
                z = z + bias
            x = activate(s.act_forward, z)
            if s.binary:
                x = np.where(x >= 0, np.float32(1), np.float32(-1))
        return z

    def save(self, path: Path, *, packed: bool = False) -> None:
        """Write a safetensors file: floats, or one bit a weight (binarized networks only)."""
        from safetensors.numpy import save

        arrays: dict[str, NDArray[Any]] = {}
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            if packed:
                arrays[f"layer{number}.packed"] = pack32(np.ascontiguousarray(weight))
            else:
                arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight, dtype=np.float32)
            if bias is not None:
                arrays[f"layer{number}.bias"] = bias
        if packed and not self.settings.binary:
            raise DataError("a float network has no packed weights", where=str(path))
        about = {"format": FORMAT, "settings": json.dumps(asdict(self.settings))}
        atomic_write(path, save(arrays, metadata=about))

    @classmethod
    @bounded_reader
    def load(cls, path: Path) -> Model:
        """Read what `save` wrote.

        Raises:
            DataError: no such file, or sizes of settings and arrays that do not match.
        """
        where = str(path)
        hint = "a file that `bitwright bnn train` wrote"
        about, arrays = _opened(read_bytes(path), where, hint)
        try:
            fields = parse_json(about["settings"])
            settings = Settings().changed(**{**fields, "sizes": tuple(fields["sizes"])})
        except (BitwrightError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"its settings are damaged: {error}", where=where, hint=hint) from error
        weights, biases = [], []
        for number in range(1, settings.layers + 1):
            weights.append(_matrix(arrays, settings, number, where))
            bias = arrays.get(f"layer{number}.bias")
            if (bias is not None) != settings.bias or (
                bias is not None and not _biases(bias, settings.sizes[number])
            ):
                raise DataError(f"biases of layer {number} do not match", where=where, hint=hint)
            biases.append(bias)
        return cls(settings, tuple(weights), tuple(biases))


def _opened(content: bytes, where: str, hint: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and arrays of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        length = int.from_bytes(content[:8], "little")
        about = parse_json(content[8 : 8 + length]).get("__metadata__") or {}
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"no safetensors file: {error}", where=where, hint=hint) from error
    if about.get("format") != FORMAT:
        raise DataError("holds no network of this kind", where=where, hint=hint)
    return about, arrays


def _biases(bias: NDArray[Any], units: int) -> bool:
    return bool(bias.shape == (units,) and bias.dtype == np.float32 and np.isfinite(bias).all())


def _matrix(arrays: dict[str, Any], s: Settings, number: int, where: str) -> NDArray[Any]:
    outputs, inputs = s.sizes[number], s.sizes[number - 1]
    packed, plain = (arrays.get(f"layer{number}.{name}") for name in ("packed", "weight"))
    if packed is not None and packed.dtype == np.uint32 and s.binary:
        if packed.shape != (outputs, words_of(inputs)):
            raise DataError(
                f"layer {number} of {inputs} inputs and {outputs} units takes {outputs} rows of "
                f"{words_of(inputs)} words, the file has {packed.shape}",
                where=where,
                hint="the file is damaged, or its sizes are those of another network",
            )
        return unpack_signs(packed, inputs)
    if plain is not None and plain.dtype == np.float32 and np.isfinite(plain).all():
        return plain  # type: ignore[no-any-return]
    raise DataError(f"no weights of layer {number}", where=where)


@dataclass(frozen=True)
class Decisions:
    """What a test set became (spec 2.7).

    Attributes:
        classes: of each image, by the largest sum.
        argmax: share of them that is right.
        strict: share whose outputs all are on their side of the threshold.
        labels: what each image is.
        count: of the network's classes.
    """

    classes: NDArray[np.int64]
    argmax: float
    strict: float
    labels: NDArray[np.int64]
    count: int

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """(true, found) counts of ``classes``; None of more classes than anybody reads in a
        matrix, which grows with their square: see `counts`.
        """
        if self.count > _MOST_CLASSES:
            return None
        found = np.zeros((self.count, self.count), dtype=np.int64)
        np.add.at(found, (self.labels, self.classes), 1)
        return found

    @property
    def counts(self) -> NDArray[np.int64]:
        """The same as rows (true, found, images) of what is not 0."""
        pairs = np.stack([self.labels, self.classes], axis=1)
        found, images = np.unique(pairs, axis=0, return_counts=True)
        return np.concatenate([found, images[:, None]], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Shares and the confusion; of many classes its ``counts``."""
        matrix = self.confusion
        confusion = {"counts": self.counts.tolist()} if matrix is None else {}
        return {
            "images": len(self.classes),
            "argmax": self.argmax,
            "strict": self.strict,
            "confusion": None if matrix is None else matrix.tolist(),
            **confusion,
        }


def decide(
    settings: Settings, sums: Floats, labels: NDArray[np.int64], threshold: float | None = None
) -> Decisions:
    """Classes by both rules.

    Args:
        threshold: outputs count as +1 from here on and as -1 up to minus this; by default 1 for a
            binarized network, 0 for a float one, whose outputs show a trend early (spec 2.7).

    Raises:
        DataError: a label is none of the network's classes.
    """
    return _decisions(labels, [_decided(settings, sums, labels, threshold)], sums.shape[1])


def judge(
    model: Model,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    product: Product | None = None,
) -> Decisions:
    """`decide` of a network's sums, of which no more are held at a time than `Model.batch` images
    have.

    Raises:
        DataError: as of `Model.sums` and `decide`.
    """
    product = product or model.cpu()
    found = []
    for start in range(0, max(len(images), 1), model.batch):
        some = slice(start, start + model.batch)
        sums = model.sums(images[some], product)
        found.append(_decided(model.settings, sums, labels[some], None))
    return _decisions(labels, found, model.settings.sizes[-1])


_Decided = tuple[NDArray[np.int64], NDArray[np.bool_]]


def _decisions(labels: NDArray[np.int64], parts: list[_Decided], count: int) -> Decisions:
    classes, right = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Decisions(classes, float((classes == labels).mean()), float(right.mean()), labels, count)


def _decided(
    settings: Settings, sums: Floats, labels: NDArray[np.int64], threshold: float | None
) -> _Decided:
    """Of each image the class, and whether all of its outputs are right."""
    if labels.size and not 0 <= labels.min() <= labels.max() < sums.shape[1]:
        raise DataError(
            f"expected labels 0 to {sums.shape[1] - 1}, got {labels.min()} to {labels.max()}",
            where="test samples",
            hint="the network has fewer classes than these images",
        )
    output = activate(settings.act_forward, sums)
    if settings.binary:
        output = np.where(output >= 0, np.float32(1), np.float32(-1))
    limit = (1.0 if settings.binary else 0.0) if threshold is None else threshold
    wanted = np.arange(sums.shape[1]) == labels[:, None]
    right = np.where(wanted, output >= limit, (output <= -limit) & (output < max(limit, 1e-30)))
    return sums.argmax(axis=1), right.all(axis=1)


def surest_class(settings: Settings, sums: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Of each row of sums (N, classes) the class, and the lead of its sum over the next: a share of
    the products in a sum.

    Raises:
        DataError: there is one class alone.
    """
    if sums.shape[1] < 2:
        raise DataError("the network has one class, which no other one can lead", where="model")
    best = np.sort(sums, axis=1)[:, -2:]
    return sums.argmax(axis=1), (best[:, 1] - best[:, 0]) / settings.sizes[-2]
