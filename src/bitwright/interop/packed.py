# SPDX-License-Identifier: Apache-2.0
"""A quantized model in a small file: weights as codes of their format, any format and scale rule.

What is left out is what freezing forgets anyway, where between two levels a float weight lay. A
model that was packed and loaded again freezes to the same integers.

The file: 4 bytes ``BWQ2``, the length of the header (4 bytes, little-endian), the header (JSON: the
list of entries, or an object with ``entries`` and ``about``, what the model is), the parts one
after the other, and the CRC-32 of all that (4 bytes). Codes are as wide as the format, a codebook's
table has ``size`` entries, a block's exponent a byte, a scale 4 bytes (a power of two 1, none if it
is 1), other numbers of the model 4 bytes. `PackedReport` says what takes how much, and
`PackedReport.parameter_bits` is to the bit what `explore.model_sizes` counts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError, FormatError, ModelError
from bitwright.base.files import atomic_write, parse_json, read_bytes
from bitwright.formats import CodebookFormat, Format, parse_format
from bitwright.formats.rounding import FloatArray
from bitwright.interop.packed_parts import (
    code_bytes,
    exponent_bytes,
    exponents_of,
    levels_of,
    scale_bytes,
    scales_of,
    split_blocks,
    table_bytes,
    table_of,
)
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.quantizer import present_name
from bitwright.quantize.scale_rules import finish
from bitwright.quantize.spec import ScaleRule, Scope
from bitwright.quantize.straight_through import spread
from bitwright.quantize.weight_quantizer import WeightQuantizer
from bitwright.quantize.weight_state import OPTIONAL, smallest_integer

_MAGIC = b"BWQ2"
_FIXED = 12
_KINDS = ("codes", "tables", "scales", "exponents", "numbers")
_HINT = "the file is corrupt or cut short"
_STABLE = (ScaleRule.LEARNED, ScaleRule.CONST, ScaleRule.MINMAX, ScaleRule.INTERVAL)
_COUNTERS = ("batches", "num_batches_tracked")


@dataclass(frozen=True)
class PackedReport:
    """Bytes of a packed file by what they hold.

    Attributes:
        codes, tables, scales, exponents: of weights, and of biases with a format.
        numbers: everything else that the model has learned or counted: biases without a format,
            batch norm, scales of activations.
        header: names, formats and shapes, with the fixed bytes around.
        padding: bits that only fill up bytes: behind the codes of each tensor and each table, and
            in each code of more than 16 bits.
        features: bytes of ``numbers`` that belong to activations: a scale each, in float32, also
            where it is constant or shared with another.
    """

    codes: int
    tables: int
    scales: int
    exponents: int
    numbers: int
    header: int
    padding: int = 0
    features: int = 0

    @property
    def parameter_bits(self) -> int:
        """What is left without header, padding and activations: `SizeReport.parameter_bits`."""
        return 8 * (self.payload - self.features) - self.padding

    @property
    def total(self) -> int:
        """Size of the file."""
        return self.header + self.payload

    @property
    def payload(self) -> int:
        """All but the header."""
        return self.codes + self.tables + self.scales + self.exponents + self.numbers


@dataclass
class _Writer:
    """Parts in order, and their description.

    Attributes:
        tables: of codebooks, number by content; layers that share one name its number.
        padding: see `PackedReport`.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    tables: dict[tuple[Scope, bytes], int] = field(default_factory=dict)
    written: int = 0
    padding: int = 0

    def add(self, kind: str, body: bytes, bits: int | None = None) -> int:
        """Append a part; its length goes into the entry that describes it.

        Args:
            bits: how many of the part say something; None: all.
        """
        self.parts.append(body)
        self.sizes[kind] += len(body)
        self.padding += 0 if bits is None else 8 * len(body) - bits
        return len(body)

    def add_table(self, body: bytes, scope: Scope, bits: int) -> tuple[int, int]:
        """Number and length of a table; the length is 0 if it has been written for another."""
        key = scope, body
        if scope is not Scope.LAYER and key in self.tables:
            return self.tables[key], self.add("tables", b"")
        self.tables[key] = self.written
        self.written += 1
        return self.tables[key], self.add("tables", body, bits)


def save_packed(
    path: Path, model: fx.GraphModule, about: Mapping[str, Any] | None = None
) -> PackedReport:
    """Write a model that `apply` converted.

    Args:
        about: plain values that say what the model is, see `packed_model`.

    Raises:
        ModelError: a weight is not finite.
        DataError: the file cannot be written; an old one is untouched.
    """
    out = _Writer()
    quantizers = dict(_quantizers(model))
    for name, (quantizer, tensor) in quantizers.items():
        _write_codes(out, name, quantizer, tensor)
    for key, value in model.state_dict().items():
        if not _is_packed(key, quantizers):
            _write_numbers(out, key, value)
    head: Any = out.entries if about is None else {"about": about, "entries": out.entries}
    header = json.dumps(head, separators=(",", ":")).encode()
    body = b"".join([_MAGIC, len(header).to_bytes(4, "little"), header, *out.parts])
    try:
        atomic_write(path, body + zlib.crc32(body).to_bytes(4, "little"))
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise DataError(what, where=str(path)) from error
    return PackedReport(
        **out.sizes,
        header=len(header) + _FIXED,
        padding=out.padding,
        features=_feature_bytes(model),
    )


@bounded_reader
def load_packed(path: Path, model: fx.GraphModule) -> None:
    """Load what `save_packed` wrote into a model converted by the same policy.

    Weights whose scale follows from float weights, and those that their policy would now make other
    levels of, are fixed to their levels (`WeightQuantizer.fix_levels`); before training on, call
    ``release``.

    Raises:
        DataError: the file is missing, corrupt or of another version.
        ModelError: it belongs to another model or policy. The model is then unchanged.
    """
    _, entries, body = _opened(path)
    quantizers = dict(_quantizers(model))
    expected = model.state_dict()
    reader = _Reader(body, str(path))
    state: dict[str, Tensor] = {}
    followed: dict[str, tuple[Tensor, Tensor]] = {}  # weights that are quantized again
    for entry in entries:
        name = str(entry.get("name"))
        name = name if name in expected else present_name(name)
        if entry.get("kind") == "numbers":
            like = expected.get(name)
            found = {name: _numbers(entry, reader.parts(entry), like, f"{path}, {name}")}
        elif name in quantizers:
            found, levels = _weight_state(name, entry, reader, *quantizers[name])
            if not entry.get("pinned"):
                followed[name] = levels
        else:
            raise ModelError(f"belongs to another model or policy: {name}", where=str(path))
        if twice := sorted(found.keys() & state.keys()):
            raise DataError("is there twice", where=f"{path}, {twice[0]}", hint=_HINT)
        state |= found
    if reader.at != len(body):
        raise DataError("its parts have not the length stated", where=str(path), hint=_HINT)
    _check_complete(state, expected, path)
    before = {name: value.clone() for name, value in expected.items()}
    expected.clear()  # but for its metadata: the specifications are those of the model
    expected.update(state)
    model.load_state_dict(expected)
    try:
        _keep_levels(model, followed, state)
    except ModelError:
        expected.clear()
        expected.update(before)
        model.load_state_dict(expected)
        raise


def _keep_levels(
    model: fx.GraphModule, found: dict[str, tuple[Tensor, Tensor]], state: dict[str, Tensor]
) -> None:
    """Fix the weights that their policy would make other levels of than the file holds: a quotient
    that is rounded down may be just below its level, and a scale may not be the policy's.

    Raises:
        ModelError: they are no levels.
    """
    quantizers = dict(_quantizers(model))
    for name, (exact, unit) in found.items():
        quantizer, weight = quantizers[name]
        made, step = quantizer.levels(weight)
        made = made.to(torch.float64)
        reals = (made * spread(step.to(torch.float64), made)).to(weight.dtype)
        if not torch.equal(reals, state[name].to(weight.device)):
            quantizer.fix_levels(exact.to(weight.device), unit)


def count_entries(path: Path) -> int:
    """How many tensors a file holds.

    Raises:
        DataError: the file is missing, corrupt or of another version.
    """
    return len(_opened(path)[1])


@bounded_reader
def read_about(path: Path) -> dict[str, Any]:
    """What a file says its model is; empty if it does not.

    Raises:
        DataError: the file is missing, corrupt or of another version.
    """
    return _opened(path)[0]


def _quantizers(model: fx.GraphModule) -> Iterator[tuple[str, tuple[WeightQuantizer, Tensor]]]:
    """State key of every weight (and bias with a format), its quantizer and its value."""
    for name, layer in model.named_modules():
        if isinstance(layer, QuantLayer):
            yield f"{name}.weight", (layer.weight_quantizer, layer.weight.detach())
            if layer.bias is not None and layer.bias_quantizer is not None:
                yield f"{name}.bias", (layer.bias_quantizer, layer.bias.detach())


def _feature_bytes(model: fx.GraphModule) -> int:
    """Bytes of numbers that belong to the quantizers of activations."""
    found = [m for m in model.modules() if isinstance(m, ActivationQuantizer)]
    kept = [(key, value) for m in found for key, value in m.state_dict().items()]
    return sum(4 * v.numel() for key, v in kept if key.rpartition(".")[2] not in _COUNTERS)


def _is_packed(key: str, quantizers: dict[str, tuple[WeightQuantizer, Tensor]]) -> bool:
    """Whether a state key is covered by codes: a weight, or what its quantizer keeps."""
    owner, _, last = key.rpartition(".")
    if key in quantizers:
        return True
    name = owner.removesuffix("_quantizer")
    return name != owner and name in quantizers and last in (*OPTIONAL, "scale")


def _write_codes(out: _Writer, name: str, quantizer: WeightQuantizer, tensor: Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError("holds NaN or infinity", where=name)
    levels, unit = quantizer.levels(tensor)
    number_format, spec = quantizer.format, quantizer.spec
    entry: dict[str, Any] = {
        "name": name,
        "format": spec.format.name,
        "shape": list(tensor.shape),
        "pinned": quantizer.fixed or not _is_stable(quantizer),
        "parts": [],
    }
    if spec.zero_point:
        entry["levels"] = number_format.name  # with the zero point, or a wider one for several
    elements = levels.cpu().numpy()
    if number_format.block:
        elements, exponents = split_blocks(levels, float(unit), number_format, name)
        entry["parts"].append(out.add("exponents", exponent_bytes(exponents, number_format.block)))
    else:
        scale = unit.cpu().numpy() / number_format.lsb
        if spec.scale is ScaleRule.LEARNED and not entry["pinned"] and not spec.power_of_two:
            # The parameter itself: what is used of it follows.
            scale = quantizer.scale.detach().to(torch.float64).cpu().numpy()
            entry["raw"] = True
            body, entry["scale"] = scale.astype("<f4").tobytes(), "float32"
        elif spec.scale is ScaleRule.CONST and (scale == 1).all():
            body, entry["scale"] = b"", "one"
        else:
            body, entry["scale"] = scale_bytes(scale, spec.power_of_two)
        entry["parts"].append(out.add("scales", body))
    if isinstance(number_format, CodebookFormat) and spec.format.needs_table:
        table = table_bytes(number_format)
        entry["table"], length = out.add_table(table, spec.scope, number_format.table_bits)
        entry["parts"].append(length)
    body, bits = code_bytes(elements, number_format), elements.size * number_format.bits
    entry["parts"].append(out.add("codes", body, bits))
    out.entries.append(entry)


def _is_stable(quantizer: WeightQuantizer) -> bool:
    """Whether quantizing the quantized weight again gives the same levels and scale."""
    spec = quantizer.spec
    return spec.format.needs_table or spec.scale in _STABLE


def _write_numbers(out: _Writer, key: str, value: Tensor) -> None:
    entry: dict[str, Any] = {"name": key, "kind": "numbers", "shape": list(value.shape)}
    if key.rpartition(".")[2] in _COUNTERS:
        entry["count"] = int(value)  # how often something was averaged: not worth a part
        entry["parts"] = []
    else:
        narrow = value.detach().to(torch.float64).cpu().numpy()
        entry["parts"] = [out.add("numbers", narrow.astype("<f4").tobytes())]
    out.entries.append(entry)


def _opened(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], bytes]:
    """What a whole file says of its model, its entries and its parts."""
    content = read_bytes(path)
    if content[: len(_MAGIC)] != _MAGIC:
        raise DataError("is no packed model of this version", where=str(path), hint=_HINT)
    body, check = content[:-4], int.from_bytes(content[-4:], "little")
    if len(content) < _FIXED or zlib.crc32(body) != check:
        raise DataError("is not whole: its checksum differs", where=str(path), hint=_HINT)
    length = int.from_bytes(content[4:8], "little")
    try:
        found = parse_json(body[8 : 8 + length])
    except ValueError as error:
        raise DataError(f"has no readable header: {error}", where=str(path), hint=_HINT) from error
    head = found if isinstance(found, dict) else {"entries": found}
    about, entries = head.get("about", {}), head.get("entries")
    if not isinstance(about, dict):
        raise DataError("has no readable header", where=str(path), hint=_HINT)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError("has no list of entries", where=str(path), hint=_HINT)
    return about, entries, body[8 + length :]


class _Reader:
    """Takes parts from the body, one after the other."""

    def __init__(self, body: bytes, where: str) -> None:
        self.body, self.where, self.at = body, where, 0
        self.tables: dict[int, CodebookFormat] = {}

    def parts(self, entry: dict[str, Any]) -> list[bytes]:
        lengths = entry.get("parts")
        if not isinstance(lengths, list) or not all(isinstance(n, int) and n >= 0 for n in lengths):
            raise DataError("an entry has no parts", where=self.where, hint=_HINT)
        found = []
        for length in lengths:
            found.append(self.body[self.at : self.at + length])
            self.at += length
        return found


def _numbers(entry: dict[str, Any], parts: list[bytes], like: Tensor | None, where: str) -> Tensor:
    if like is None:
        raise ModelError("belongs to another model or policy", where=where)
    _require_shape(entry, like, where)
    if "count" in entry:
        count = entry["count"]
        if type(count) is not int or not 0 <= count < 1 << 53:
            raise DataError(
                f"'count' must be a whole number, found {count!r}"[:200], where=where, hint=_HINT
            )
        return torch.tensor(count, dtype=like.dtype)
    if len(parts) != 1 or len(parts[0]) != 4 * like.numel():
        raise DataError("holds too few or too many numbers", where=where, hint=_HINT)
    values = np.frombuffer(parts[0], dtype="<f4").reshape(like.shape)
    return torch.from_numpy(values.astype(np.float64)).to(like.dtype)


def _require_shape(entry: dict[str, Any], like: Tensor, where: str) -> None:
    if entry.get("shape") != list(like.shape):
        raise ModelError(
            f"has the shape {entry.get('shape')!r}"[:200] + f", expected {list(like.shape)}",
            where=where,
        )


def _weight_state(
    name: str, entry: dict[str, Any], reader: _Reader, quantizer: WeightQuantizer, like: Tensor
) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """State of one weight and its quantizer; its levels and their unit."""
    spec, where = quantizer.spec, f"{reader.where}, {name}"
    parts = reader.parts(entry)
    if entry.get("format") != spec.format.name:
        raise ModelError(
            f"holds {entry.get('format')} weights, the policy has {spec.format.name}", where=where
        )
    _require_shape(entry, like, where)
    unfitted = spec.format.needs_table
    if len(parts) != 2 + unfitted:
        raise DataError(f"has {len(parts)} parts", where=where, hint=_HINT)
    prefix, state = f"{name}_quantizer.", {}
    number_format = _affine(entry, where) if spec.zero_point else spec.format
    if unfitted:
        number_format = _table(entry, parts[1], reader, spec.format, where)
    levels = levels_of(parts[-1], number_format, like.numel(), where).reshape(like.shape)
    if number_format.block:
        exponent = exponents_of(parts[0], tuple(like.shape), number_format.block, where)
        lowest = exponent.min()
        levels = levels * np.exp2(exponent - lowest)
        unit = np.array([2.0**lowest * number_format.lsb])
    else:
        scale = _scale(entry, parts[0], like.shape[0], where)
        if entry.get("raw"):
            state[f"{prefix}scale"] = torch.from_numpy(scale).to(torch.float32)
            used = finish(torch.from_numpy(scale).to(torch.float32), spec)
            scale = used.to(torch.float64).numpy()
        unit = scale * number_format.lsb
        if unfitted:
            table = number_format.float_grid().tolist()
            state[f"{prefix}table"] = torch.tensor(table, dtype=torch.float64)
            state[f"{prefix}table_scale"] = torch.from_numpy(scale)
    exact, wide = torch.from_numpy(levels), torch.from_numpy(unit)
    state[name] = (exact * spread(wide, exact)).to(like.dtype)
    if entry.get("pinned"):
        whole = number_format.exact_levels
        state[f"{prefix}fixed_levels"] = smallest_integer(exact) if whole else exact
        state[f"{prefix}fixed_unit"] = wide
    if spec.scale is ScaleRule.LEARNED and f"{prefix}scale" not in state:
        used = torch.from_numpy(unit / number_format.lsb).to(torch.float32)
        state[f"{prefix}scale"] = used.expand(quantizer.scale.shape).clone()
    return state, (exact, wide)


def _affine(entry: dict[str, Any], where: str) -> Format:
    """The format with the zero point."""
    try:
        return parse_format(str(entry.get("levels", "")))
    except FormatError as error:
        raise DataError("has no format of its levels", where=where, hint=_HINT) from error


def _scale(entry: dict[str, Any], body: bytes, channels: int, where: str) -> FloatArray:
    if entry.get("scale") == "one":
        if body:
            raise DataError(
                f"has {len(body)} bytes of scales that are said to be 1", where=where, hint=_HINT
            )
        return np.ones(1)
    if entry.get("raw"):  # of any sign, as it was learned
        if len(body) % 4:
            raise DataError(f"{len(body)} bytes of float32 scales", where=where, hint=_HINT)
        scale = np.frombuffer(body, dtype="<f4").astype(np.float64)
    else:
        scale = scales_of(body, str(entry.get("scale")), where)
    if scale.size not in (1, channels):
        raise DataError(f"holds {scale.size} scales for {channels} channels", where=where)
    return scale


def _table(
    entry: dict[str, Any], body: bytes, reader: _Reader, number_format: Format, where: str
) -> CodebookFormat:
    """The codebook with its table: here, or of the entry that brought it."""
    number = entry.get("table")
    if not isinstance(number, int) or not isinstance(number_format, CodebookFormat):
        raise DataError("has no number of a table", where=where, hint=_HINT)
    if body and number in reader.tables:
        raise DataError(f"brings table {number} again", where=where, hint=_HINT)
    if body:
        reader.tables[number] = table_of(body, number_format, where)
    if number not in reader.tables:
        raise DataError(f"names table {number}, which is not there", where=where, hint=_HINT)
    return reader.tables[number]


def _check_complete(state: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    optional = {key for key in (*state, *expected) if key.rpartition(".")[2] in OPTIONAL}
    for key in sorted((set(state) ^ set(expected)) - optional):
        raise ModelError(f"belongs to another model or policy: {key}", where=str(path))
