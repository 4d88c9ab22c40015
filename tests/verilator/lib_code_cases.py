# SPDX-License-Identifier: Apache-2.0
"""Parameter points whose operands or results are codes: floats, powers of two, a table.

Levels are those of the formats, which are tested elsewhere; everything else is written from the
module headers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.verilator.lib_case import Case, Levels, Stamps, Streams, image, one_to_one, spec

from bitwright.formats import MinifloatFormat, Rounding, parse_format


@dataclass(frozen=True)
class Codes:
    """A float or power of two as the modules' parameters see it: exponent bits, and Low."""

    name: str
    exponent: int
    low: int

    def levels(self, rng: np.random.Generator, size: tuple[int, ...]) -> Levels:
        return rng.choice(parse_format(self.name).grid(), size)

    @property
    def bits(self) -> int:
        return parse_format(self.name).bits


E2M1, E2M3 = Codes("e2m1", 2, 0), Codes("e2m3", 2, 0)
FLUSH = Codes("e3m2<flush>", 3, 1)
PO2_ZERO = Codes("po2_4<zero>", 3, 0)


def _weights(codes: Codes, levels: Levels) -> Levels:
    return parse_format(codes.name).codes(levels)


def float_matvec(
    name: str, weight: Codes, act: Codes | None, latency: int, *, table: int = 0, dsp: bool = False
) -> Case:
    """4 rows of 6 columns, 2 by 3 a step; integers of 7 bits, signed, if there is no `act`.

    `latency` is 5 + ExtraLatency + TreeLevels of `mac_array`; `table` has that many entries.
    """
    rng = np.random.default_rng(sum(name.encode()))
    entries = np.sort(rng.choice(parse_format(weight.name).grid(), max(table, 1), replace=False))
    index = rng.integers(0, max(table, 1), (4, 6))
    matrix = entries[index] if table else weight.levels(rng, (4, 6))
    if act is None:
        port_in = spec(3, 7, 2, signed=True)
        own: dict[str, int | str] = {"ActWidth": 7, "ActSigned": 1}
    else:
        port_in = spec(3, act.bits, 2, codes=act.name)
        own = {"ActWidth": act.bits, "ActExp": act.exponent, "ActLow": act.low}
    low, high = port_in.interval
    acc_bits = int(np.abs(matrix).sum(axis=1).max() * max(-low, high)).bit_length() + 1
    words = index if table else _weights(weight, matrix)
    lanes = words.reshape(2, 2, 2, 3).transpose(0, 2, 1, 3).reshape(4, 6)
    width = (table - 1).bit_length() if table else weight.bits

    def reference(x: Streams) -> Streams:
        return {"out": x["in"] @ matrix.T}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        start = np.arange(frames)[:, None] * 4
        taken, given = start + np.arange(2), start + np.arange(2) * 2 + 1 + latency
        return taken.ravel(), given.ravel()

    parameters: dict[str, int | str] = {
        "MW": 6, "MH": 4, "PE": 2, "SIMD": 3, "WeightWidth": weight.bits,
        "WeightExp": weight.exponent, "WeightLow": weight.low, **own, "AccWidth": acc_bits,
        "WeightFile": "w.mem", "DspRows": 2 if dsp else 0, "RomStyle": 2,
    }  # fmt: skip
    memories = {"w.mem": image(lanes, width)}
    if table:
        parameters |= {"IndexWidth": width, "TableFile": "t.mem"}
        memories["t.mem"] = image(_weights(weight, entries)[:, None], weight.bits)
    return Case(f"matvec_{name}", "matvec", parameters, {"in": port_in},
                {"out": spec(2, acc_bits, 2, signed=True)}, reference, 4, stamps,
                memories)  # fmt: skip


def float_depthwise(name: str, weight: Codes, latency: int) -> Case:
    """4 channels of 5 taps, 2 a beat, activations of 4 bits, unsigned."""
    rng = np.random.default_rng(sum(name.encode()))
    taps = weight.levels(rng, (4, 5))
    words = taps.reshape(2, 2, 5).transpose(0, 2, 1).reshape(-1, 2)
    acc_bits = int(np.abs(taps).sum(axis=1).max() * 15).bit_length() + 1

    def reference(x: Streams) -> Streams:
        beats = x["in"].reshape(-1, 2, 5, 2)
        return {"out": (beats * words.reshape(2, 5, 2)).sum(axis=2).reshape(len(x["in"]), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * 10)
        return taken, taken[4::5] + latency

    parameters: dict[str, int | str] = {
        "Channels": 4, "PE": 2, "Window": 5, "WeightWidth": weight.bits, "ActWidth": 4,
        "AccWidth": acc_bits, "WeightExp": weight.exponent, "WeightLow": weight.low,
        "WeightFile": "w.mem",
    }  # fmt: skip
    memories = {"w.mem": image(_weights(weight, words), weight.bits)}
    return Case(f"depthwise_{name}", "depthwise", parameters, {"in": spec(2, 4, 10)},
                {"out": spec(2, acc_bits, 2, signed=True)}, reference, 10, stamps,
                memories)  # fmt: skip


_MODES = {0: Rounding.HALF_EVEN, 2: Rounding.HALF_UP, 3: Rounding.FLOOR}


def float_requant(
    name: str, out: Codes, shift: int, mode: int, *, power: int = -1, lowest: int | None = None
) -> Case:
    """4 channels, 2 a beat, inputs of 12 bits; multipliers of 5 bits, or 2^power."""
    rng = np.random.default_rng(sum(name.encode()))
    kind = parse_format(out.name)
    assert isinstance(kind, MinifloatFormat)
    factors = rng.integers(-16, 16, 4) if power < 0 else np.full(4, 1 << power)
    offset = rng.integers(-300, 301, 4) * (power < 0)
    low = kind.min_level if lowest is None else lowest

    def reference(x: Streams) -> Streams:
        numbers = x["in"].reshape(-1, 4) * factors + offset
        codes = kind.encode(numbers / 2.0**shift * kind.lsb, rounding=_MODES[mode])
        return {"out": np.clip(kind.levels(codes), low, kind.max_level).reshape(len(x["in"]), -1)}

    magnitudes = (1 << (kind.bits - 1)) - 1
    parameters: dict[str, int | str] = {
        "Channels": 4, "PE": 2, "InWidth": 12, "InSigned": 1, "MulWidth": 5, "OffsetWidth": 10,
        "Shift": shift, "OutWidth": kind.bits, "OutLo": -(int(kind.codes(low)) & magnitudes),
        "OutHi": int(kind.codes(kind.max_level)), "Rounding": mode, "OutMant": kind.mantissa,
        "OutLow": out.low, "OffsetFile": "o.mem",
    }  # fmt: skip
    memories = {"o.mem": image(offset.reshape(2, 2), 10)}
    if power < 0:
        parameters["MulFile"] = "m.mem"
        memories["m.mem"] = image(factors.reshape(2, 2), 5)
    else:
        parameters["Power"] = power
    levels = 2 if power < 0 else 0  # three digits of a multiplier
    return Case(f"requant_{name}", "requant", parameters, {"in": spec(2, 12, 2, signed=True)},
                {"out": spec(2, kind.bits, 2, codes=out.name)}, reference, 2,
                one_to_one(2, 10 + levels), memories)  # fmt: skip


def power_requant() -> Case:
    """A multiplier of 2^3 for all channels: no multiplier."""
    rng = np.random.default_rng(3)
    offset = rng.integers(-100, 101, 4)

    def reference(x: Streams) -> Streams:
        moved = x["in"].reshape(-1, 4) * 8 + offset
        return {"out": np.clip((moved + 16) >> 5, -8, 7).reshape(len(x["in"]), -1)}

    parameters: dict[str, int | str] = {
        "Channels": 4, "PE": 2, "InWidth": 7, "InSigned": 1, "MulWidth": 1, "OffsetWidth": 8,
        "Shift": 5, "OutWidth": 4, "OutLo": -8, "OutHi": 7, "Rounding": 2, "Power": 3,
        "OffsetFile": "o.mem",
    }  # fmt: skip
    return Case("requant_power", "requant", parameters, {"in": spec(2, 7, 2, signed=True)},
                {"out": spec(2, 4, 2, signed=True)}, reference, 2, one_to_one(2, 7),
                {"o.mem": image(offset.reshape(2, 2), 8)})  # fmt: skip


def code_pool() -> Case:
    """Windows of 4 pixels of one beat of 2."""
    port = spec(2, 6, 8, codes="e3m2")

    def reference(x: Streams) -> Streams:
        shaped = x["in"].reshape(-1, 2, 4, 2)
        return {"out": shaped.max(axis=2).reshape(len(x["in"]), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * 8)
        return taken, taken[3::4] + 3

    parameters = {"Window": 4, "Fold": 1, "PE": 2, "ElemWidth": 6, "ElemCode": 1}
    return Case("pool_code", "pool_max", parameters, {"in": port},
                {"out": spec(2, 6, 2, codes="e3m2")}, reference, 8, stamps)  # fmt: skip


CODE_CASES = (
    # 5, trees of 3 lanes and of the digits, and what a float or a table takes.
    float_matvec("flush", FLUSH, E2M3, 5 + 2 + 1 + 2),
    float_matvec("power", PO2_ZERO, None, 5 + 2 + 0 + 1),
    float_matvec("table", E2M1, None, 5 + 2 + 0 + 3, table=5),
    float_matvec("float_dsp", E2M3, None, 5 + 2 + 0 + 2, dsp=True),
    float_depthwise("float", E2M3, 5 + 1 + 2),
    float_requant("float_up", E2M1, 5, 2, lowest=0),
    float_requant("float_flush", FLUSH, 3, 3),
    float_requant("float_power", E2M3, 0, 0, power=1),
    power_requant(),
    code_pool(),
)
