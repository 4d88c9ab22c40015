# SPDX-License-Identifier: Apache-2.0
"""EXEC on whole arrays: addresses, products, post-processing; see ``docs/engine.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ProgramError
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import (
    Bits,
    Buffer,
    Exec,
    Init,
    Input,
    Output,
    Post,
    Reduce,
    Result,
    Rounding,
    WeightOrder,
)

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
#: Lanes as numbers: 9 bits hold any, and memory is what an EXEC takes time for.
Lanes = NDArray[np.int16]

#: Thresholds a channel; the sixteenth field of its row holds the flip.
THRESHOLDS = 15
_LOWEST = -(1 << 31)
#: Lanes that are multiplied at a time: rows of pixels come in strips of so many.
STRIP = 1 << 22


class Machine:
    """The engine's memories and the two settings of X.

    Attributes:
        features: (words, lanes) bytes; weights: (rows, O, lanes); parameters: (rows, 64);
        tables: (O, 256); each with a flag a byte: was it ever written.
        input, output: the last INPUT and OUTPUT, or None.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.input: Input | None = None
        self.output: Output | None = None
        shapes = (
            (config.feature_words, config.lanes),
            (config.weight_rows, config.outputs, config.lanes),
            (config.parameter_rows, 64),
            (config.outputs, 256),
        )
        self.features, self.weights, self.parameters, self.tables = (
            np.zeros(shape, np.uint8) for shape in shapes
        )
        (
            self.features_written,
            self.weights_written,
            self.parameters_written,
            self.tables_written,
        ) = (np.zeros(shape, np.bool_) for shape in shapes)

    def flat(self, buffer: Buffer, where: str) -> tuple[Bytes, Flags]:
        """A buffer's bytes and flags as words ``(n, lanes)``.

        Raises:
            ProgramError: this engine has no tables.
        """
        if buffer == Buffer.TABLES and not self.config.tables:
            raise ProgramError("this engine has no tables", where=where)
        data, flags = {
            Buffer.FEATURES: (self.features, self.features_written),
            Buffer.WEIGHTS: (self.weights, self.weights_written),
            Buffer.PARAMETERS: (self.parameters, self.parameters_written),
            Buffer.TABLES: (self.tables, self.tables_written),
        }[buffer]
        return data.reshape(-1, self.config.lanes), flags.reshape(-1, self.config.lanes)


@dataclass(frozen=True)
class Pixels:
    """The pixels of an EXEC that count: rows and columns within the result."""

    rows: Ints
    columns: Ints

    def strips(self, lanes: int) -> Iterator[Pixels]:
        """Some rows at a time, each pixel of so many lanes: at least one row."""
        step = max(1, STRIP // (lanes * len(self.columns)))
        for start in range(0, len(self.rows), step):
            yield Pixels(self.rows[start : start + step], self.columns)


def counted(config: EngineConfig, job: Exec, given: Input, where: str) -> Pixels:
    """Rows and columns of the results that are written.

    Raises:
        ProgramError: patch or last group do not fit the array.
    """
    across = 1 << given.patch
    if across > config.pixels:
        raise ProgramError(f"a patch of {across} columns has {config.pixels} pixels", where=where)
    down = config.pixels // across
    if job.last_x > across or job.last_y > down:
        raise ProgramError(
            f"last_y {job.last_y} and last_x {job.last_x} leave the patch of {down} x {across}",
            where=where,
        )
    return Pixels(
        np.arange((job.groups_y - 1) * down + job.last_y, dtype=np.int64),
        np.arange((job.groups_x - 1) * across + job.last_x, dtype=np.int64),
    )


def check_banks(config: EngineConfig, given: Input, finish: Output, job: Exec, where: str) -> None:
    """The P addresses of each pass, and of each write, lie in different banks.

    Raises:
        ProgramError: they do not.
    """
    across, pixels = 1 << given.patch, config.pixels
    number = np.arange(pixels)
    row, column = number // across, number % across
    reads = (row * given.row + column * given.pixel) % pixels
    if given.passes > 1 and (across != pixels or pixels % given.passes):
        raise ProgramError(f"{given.passes} passes of a patch of {across} columns", where=where)
    each = pixels // given.passes
    for start in range(0, pixels, each):
        if len(set(reads[start : start + each])) < each:
            raise ProgramError(
                f"two pixels of a pass are read from one bank: step {given.pixel}, row step "
                f"{given.row}, {given.passes} passes",
                where=where,
            )
    writes = (row * finish.row + column * finish.pixel) % pixels
    if len(set(writes)) < pixels:
        raise ProgramError(
            f"two results are written to one bank: step {finish.pixel}, row step {finish.row}",
            where=where,
        )


def execute(machine: Machine, job: Exec, where: str) -> None:
    """One EXEC.

    Raises:
        ProgramError: there was no INPUT or OUTPUT, a bank is asked twice, or something is read
            that nothing has written.
    """
    config, given, finish = machine.config, machine.input, machine.output
    if given is None or finish is None:
        raise ProgramError("an EXEC needs an INPUT and an OUTPUT before it", where=where)
    if not config.nibbles and (given.bits == Bits.FOUR or finish.result == Result.FOUR):
        raise ProgramError("this engine has no lanes of 4 bits", where=where)
    check_banks(config, given, finish, job, where)
    pixels = counted(config, job, given, where)
    steps = job.kc * job.kh * job.kw
    weights = _weights(machine, job, given, finish, steps, where)
    strips = pixels.strips(steps * weights.shape[1])
    sums = np.concatenate([_sums(machine, job, given, s, weights, where) for s in strips])
    if job.init == Init.PARTIAL:
        sums = sums + _partial(machine, job, finish, pixels, where)
    sums = (sums + (1 << 31)) % (1 << 32) - (1 << 31)
    results = _finish(machine, job, finish, sums, where)
    _write(machine, job, finish, pixels, results)


def _sums(
    machine: Machine, job: Exec, given: Input, pixels: Pixels, weights: Lanes, where: str
) -> Ints:  # fmt: skip
    """Sums or maxima (pixels, outputs) of some of the pixels."""
    if given.output == 0:
        taps, valid = _features(machine, job, given, pixels, 0, where)
        return _join(taps, valid, weights, job.reduce)
    parts, outputs = [], machine.config.outputs
    for group in range(job.outputs):
        index = group >> 1 if given.bits == Bits.FOUR else group
        taps, valid = _features(machine, job, given, pixels, index, where)
        own = weights[:, :, group * outputs : (group + 1) * outputs]
        parts.append(_join(taps, valid, own, job.reduce))
    return np.concatenate(parts, axis=1)


def _lanes(data: Bytes, bits: Bits) -> Lanes:
    """The lanes of words as unsigned numbers, in the last axis."""
    if bits == Bits.EIGHT:
        return data.astype(np.int16)
    both = np.stack([data & 15, data >> 4], axis=-1)
    return both.reshape(*data.shape[:-1], -1).astype(np.int16)


def _signed(lanes: Lanes, bits: Bits) -> Lanes:
    half = np.int16(128 if bits == Bits.EIGHT else 8)
    return (lanes ^ half) - half


def _weights(
    machine: Machine, job: Exec, given: Input, finish: Output, steps: int, where: str
) -> Lanes:  # fmt: skip
    """(K, lanes, outputs * O)."""
    config = machine.config
    group, step = np.arange(job.outputs)[:, np.newaxis], np.arange(steps)
    order = {
        WeightOrder.SEQUENTIAL: group * steps + step,
        WeightOrder.REPEATED: group * 0 + step,
        WeightOrder.SINGLE: group * 0 + step * 0,
    }[finish.weights]
    rows = (job.weights + order) % config.weight_rows
    _need(machine.weights_written[rows], "the weights' rows", rows, where)
    lanes = _signed(_lanes(machine.weights[rows], given.bits), given.bits)  # (groups, K, O, lanes)
    return lanes.transpose(1, 3, 0, 2).reshape(steps, lanes.shape[3], -1)


def _features(
    machine: Machine, job: Exec, given: Input, pixels: Pixels, group: int, where: str
) -> tuple[Lanes, Flags]:
    """Lanes (K, pixels, lanes) and which are no padding (K, pixels)."""
    config = machine.config
    ky, kx = np.arange(job.kh)[:, np.newaxis], np.arange(job.kw)
    down = pixels.rows[:, np.newaxis]
    y = job.y + down * given.stride_y + 0 * pixels.columns
    x = job.x + 0 * down + pixels.columns * given.stride_x
    y, x = y.ravel(), x.ravel()
    iy = y + (ky * given.dilation_y + 0 * kx).reshape(-1, 1)  # (kh * kw, pixels)
    ix = x + (0 * ky + kx * given.dilation_x).reshape(-1, 1)
    inside = (iy >= 0) & (iy < given.height) & (ix >= 0) & (ix < given.width)
    start = job.features + group * given.output
    place = (down * given.row + pixels.columns * given.pixel).ravel()
    tap = (ky * given.tap_y + kx * given.tap_x).reshape(-1, 1)
    plane = np.arange(job.kc, dtype=np.int64).reshape(-1, 1, 1) * given.plane
    address = (start + plane + tap + place) % config.feature_words  # (kc, kh * kw, pixels)
    valid = np.broadcast_to(inside, address.shape)
    written = _whole(machine.features_written)[address] | ~valid
    if not written.all():
        at = np.argwhere(~written)[0]
        row, column = divmod(int(at[2]), len(pixels.columns))
        raise ProgramError(
            f"features word {address[tuple(at)]} (result row {pixels.rows[row]}, column {column}, "
            f"plane {at[0]}, tap {divmod(int(at[1]), job.kw)}) was never written",
            where=where,
        )
    lanes = _lanes(machine.features[address], given.bits)
    first = min(given.first, job.kc)
    if given.signed_first:
        lanes[:first] = _signed(lanes[:first], given.bits)
    if given.signed_rest:
        lanes[first:] = _signed(lanes[first:], given.bits)
    if not inside.all():
        lanes[~valid] = 0
    steps = job.kc * job.kh * job.kw
    return lanes.reshape(steps, *lanes.shape[2:]), valid.reshape(steps, -1)


def _join(taps: Lanes, valid: Flags, weights: Lanes, reduce: Reduce) -> Ints:
    """(pixels, outputs): sums or maxima of the products, exact: all below 2^53."""
    factors = weights.astype(np.float64)
    if reduce == Reduce.ADD:
        steps, pixels, lanes = taps.shape
        flat = taps.transpose(1, 0, 2).reshape(pixels, steps * lanes).astype(np.float64)
        sums: Ints = (flat @ factors.reshape(steps * lanes, -1)).astype(np.int64)
        return sums
    dots = (taps.astype(np.float64) @ factors).astype(np.int64)
    largest: Ints = np.where(valid[:, :, np.newaxis], dots, _LOWEST).max(axis=0)
    return largest


def _targets(job: Exec, finish: Output, pixels: Pixels, planes: Ints, size: int) -> Ints:
    """Addresses (pixels, planes) of results in the features."""
    place = pixels.rows[:, np.newaxis] * finish.row + pixels.columns * finish.pixel
    return (job.out + place.reshape(-1, 1) + planes * finish.plane) % size


def _partial(machine: Machine, job: Exec, finish: Output, pixels: Pixels, where: str) -> Ints:
    config = machine.config
    planes = np.arange(config.raw_words * job.outputs, dtype=np.int64)
    address = _targets(job, finish, pixels, planes, config.feature_words)
    _need(machine.features_written[address], "partial sums", address, where)
    data = np.ascontiguousarray(machine.features[address]).reshape(len(address), -1)
    return data.view("<i4").astype(np.int64)


def _whole(written: Flags) -> Flags:
    """Of words' flags (words, lanes): whether all of a word was written. Eight flags at a time, as
    numpy's ``all`` is slow over rows as short as these.
    """
    eights = written.view(np.uint64)
    every = np.uint64(0x0101010101010101)
    found: Flags = eights[:, 0] == every
    for column in range(1, eights.shape[1]):
        found &= eights[:, column] == every
    return found


def _need(written: Flags, what: str, address: Ints, where: str) -> None:
    whole = written.reshape(*address.shape, -1).all(axis=-1)
    if not whole.all():
        first = address[~whole].ravel()[0]
        raise ProgramError(f"{what} {first} were never written", where=where)


def _rows(machine: Machine, first: int, count: int) -> tuple[Bytes, Flags]:
    rows = (first + np.arange(count, dtype=np.int64)) % machine.config.parameter_rows
    return machine.parameters[rows], machine.parameters_written[rows]


def _finish(machine: Machine, job: Exec, finish: Output, sums: Ints, where: str) -> Ints:
    """Results (pixels, channels) of the sums."""
    config = machine.config
    channels = job.outputs * config.outputs
    if finish.post == Post.THRESHOLD:
        fields, written = _rows(machine, job.parameters, channels)
        _need(written, "parameters of channel", np.arange(channels), where)
        table = np.ascontiguousarray(fields).view("<i4").astype(np.int64)
        flip = table[:, THRESHOLDS] & 1
        compared = np.where(flip == 1, ~sums, sums)
        limits = table[:, :THRESHOLDS]
        counted: Ints = (compared[:, :, np.newaxis] >= limits).sum(axis=-1).astype(np.int64)
        counted = (counted << finish.step) + finish.base
        return _look_up(machine, finish, counted, where)
    fields, written = _rows(machine, job.parameters, -(-channels // 8))
    records = np.ascontiguousarray(fields).view("<i8").ravel()[:channels]
    flags = np.ascontiguousarray(written).reshape(-1, 8)[:channels]
    _need(flags, "parameters of channel", np.arange(channels), where)
    bits = config.multiplier_bits
    half = 1 << (bits - 1)
    multiplier = ((records & ((1 << bits) - 1)) ^ half) - half
    value = shifted(sums * multiplier + (records >> bits), finish.shift, finish.rounding)
    if finish.result == Result.RAW:
        return value
    return _look_up(machine, finish, np.clip(value, finish.low, finish.high), where)


def _look_up(machine: Machine, finish: Output, value: Ints, where: str) -> Ints:
    """The tables' entries of results (pixels, channels), if there is to be a lookup."""
    config = machine.config
    if not finish.lookup:
        return value
    if not config.tables:
        raise ProgramError("this engine has no tables", where=where)
    output = np.arange(value.shape[1]) % config.outputs
    index = value & 255
    _need(machine.tables_written[output, index], "table entry", index, where)
    found: Ints = machine.tables[output, index].astype(np.int64)
    return found


def shifted(value: Ints, shift: int, rounding: Rounding) -> Ints:
    """``value / 2^shift`` rounded to an integer."""
    if shift == 0 or rounding == Rounding.FLOOR:
        return value >> shift
    if rounding == Rounding.CEIL:
        return -(-value >> shift)
    half = np.int64(1) << (shift - 1)
    if rounding == Rounding.HALF_AWAY:
        return np.where(value < 0, -((-value + half) >> shift), (value + half) >> shift)
    rounded = (value + half) >> shift
    if rounding == Rounding.HALF_EVEN:
        tie = (value & ((np.int64(1) << shift) - 1)) == half
        rounded = rounded - (tie & (rounded & 1 == 1))
    return rounded


def _write(machine: Machine, job: Exec, finish: Output, pixels: Pixels, results: Ints) -> None:
    config = machine.config
    if finish.result == Result.RAW:
        data = np.ascontiguousarray(results.astype("<i4")).view(np.uint8)
        planes = config.raw_words * job.outputs
    elif finish.result == Result.EIGHT:
        data, planes = (results & 255).astype(np.uint8), job.outputs
    else:
        data = (results[:, ::2] & 15 | (results[:, 1::2] & 15) << 4).astype(np.uint8)
        half = config.lanes // 2
        for group in range(job.outputs):
            plane = np.array([group // 2], np.int64)
            address = _targets(job, finish, pixels, plane, config.feature_words)[:, 0]
            place = slice(half * (group % 2), half * (group % 2 + 1))
            machine.features[address, place] = data[:, half * group : half * (group + 1)]
            machine.features_written[address, place] = True
        return
    address = _targets(job, finish, pixels, np.arange(planes, dtype=np.int64), config.feature_words)
    machine.features[address] = data.reshape(len(data), planes, config.lanes)
    machine.features_written[address] = True
