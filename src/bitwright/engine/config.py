# SPDX-License-Identifier: Apache-2.0
"""One configuration of the programmed engine: sizes of array and memories, in one JSON file.

The RTL depends on this alone; networks are programs. ``docs/engine.md`` says what the parts do.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from math import log2

from bitwright.base.errors import TargetError
from bitwright.base.files import parse_json
from bitwright.engine.isa import Post, Result

#: Bits of a row of the parameter memory: 15 thresholds and the flip of a channel, or the records
#: of 8 channels.
PARAMETER_ROW_BITS = 512
#: Entries of a lookup table.
TABLE_ENTRIES = 256
#: Of a constant: cycles, words, places. Of those that something is divided by, at least.
_MOST_CONSTANT = 1 << 16
_LEAST: dict[str, float] = {"burst_words": 1, "queue": 1, "bytes_per_cycle": 1 / 64}


@dataclass(frozen=True)
class Constants:
    """Cycles that the RTL adds to the formulas, and the memory that the model assumes.

    Attributes:
        exec_start: X: cycles of an EXEC besides its groups (c0).
        exec_result: X: cycles from its end to its signal (c1), with up to 8 lanes; see
            `EngineConfig.exec_result`.
        conf: X: cycles of a CONF.
        load_start, store_start: L, S: cycles of an instruction besides its bursts.
        burst: cycles of a burst besides its words.
        burst_words: longest burst, which also ends at multiples of this.
        fetch: cycles that the fetcher takes for one instruction.
        queue: instructions that a unit's queue holds.
        bytes_per_cycle: that the memory outside gives or takes; at most one word a cycle.
    """

    exec_start: int = 8
    exec_result: int = 31
    conf: int = 1
    load_start: int = 8
    store_start: int = 8
    burst: int = 2
    burst_words: int = 16
    fetch: int = 4
    queue: int = 16
    bytes_per_cycle: float = 3.6

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            low = _LEAST.get(name, 0)
            if not low <= value <= _MOST_CONSTANT:  # NaN neither
                raise TargetError(
                    f"{name} must lie in {low} .. {_MOST_CONSTANT}, got {value!r:.40}",
                    where="engine constants",
                )


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine; the name ``PxIxO`` is what papers write (``4x8x8``).

    Attributes:
        pixels: P, pixels of a group, and banks of the feature memory.
        lanes: I, lanes of a word of 8 bits each.
        outputs: O, outputs of a group, and banks of the weight memory; equal to ``lanes``, so that
            the results of a pixel are one word.
        feature_words, weight_rows, parameter_rows: sizes of the memories: words of ``lanes`` bytes,
            rows of ``outputs`` words, rows of 512 bits; each a power of two.
        nibbles: whether a lane also takes two values of 4 bits.
        tables: whether the post lanes have lookup tables.
        multiplier_bits, offset_bits: of a requantization; together 64.
        post_lanes: of a pixel, 1 or 2: with 2, results of 8 or 4 bits that are requantized without
            a lookup leave two a cycle.
        constants: what the RTL adds to the cycle formulas.

    Raises:
        TargetError: a size that the engine cannot have.
    """

    pixels: int = 4
    lanes: int = 8
    outputs: int = 8
    feature_words: int = 1 << 15
    weight_rows: int = 1 << 10
    parameter_rows: int = 1 << 9
    nibbles: bool = True
    tables: bool = True
    multiplier_bits: int = 18
    offset_bits: int = 46
    post_lanes: int = 1
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        powers = ("pixels", "lanes", "outputs", "feature_words", "weight_rows", "parameter_rows")
        for name in powers:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise TargetError(
                    f"{name} must be a power of two, got {value!r:.40}", where="engine"
                )
        limits = {
            "pixels": (2, 64), "lanes": (8, 16), "feature_words": (64, 1 << 16),
            "weight_rows": (16, 1 << 13), "parameter_rows": (16, 1 << 12),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise TargetError(
                    f"{name} must lie in {low} .. {high}, got {getattr(self, name)}", where="engine"
                )
        if self.outputs != self.lanes:
            raise TargetError(
                f"outputs ({self.outputs}) must equal lanes ({self.lanes}): the results of a pixel "
                "are one word",
                where="engine",
                hint="change pixels to change the number of products a cycle",
            )
        if self.multiplier_bits + self.offset_bits != 64 or not 9 <= self.multiplier_bits <= 28:
            raise TargetError(
                f"multiplier and offset share 64 bits, got {self.multiplier_bits} and "
                f"{self.offset_bits}",
                where="engine",
            )
        if self.post_lanes not in (1, 2):
            raise TargetError(f"post_lanes must be 1 or 2, got {self.post_lanes}", where="engine")
        if self.weight_rows * self.outputs > 1 << 16:
            raise TargetError("the weight memory has more than 65536 words", where="engine")

    @property
    def name(self) -> str:
        return f"{self.pixels}x{self.lanes}x{self.outputs}"

    @property
    def products(self) -> int:
        """Products of 8 bits a cycle; twice as many of 4."""
        return self.pixels * self.lanes * self.outputs

    @property
    def word_bytes(self) -> int:
        return self.lanes

    @property
    def drain(self) -> int:
        """D: cycles in which a group's results leave, ``P * O`` through P post lanes."""
        return max(self.outputs, 8)

    @property
    def exec_result(self) -> int:
        """c1: what the constant says for 8 lanes, and a cycle more for each result behind them."""
        return self.constants.exec_result + self.drain - 8

    def leaves(self, post: Post, result: Result, lookup: bool) -> int:
        """D for results of this kind: half of it where two post lanes of a pixel can work."""
        fast = self.post_lanes == 2 and post == Post.REQUANT and result != Result.RAW
        return self.drain // 2 if fast and not lookup else self.drain

    @property
    def raw_words(self) -> int:
        """Words of the raw 32-bit results of a pixel."""
        return 4 * self.outputs // self.lanes

    @property
    def parameter_row_words(self) -> int:
        return max(1, PARAMETER_ROW_BITS // (8 * self.lanes))

    @property
    def table_words(self) -> int:
        """Words of the tables of one output group: ``outputs`` tables of 256 bytes."""
        return TABLE_ENTRIES * self.outputs // self.lanes

    @property
    def pixel_bits(self) -> int:
        return int(log2(self.pixels))

    def to_json(self) -> str:
        """The accelerator's file; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> EngineConfig:
        """The configuration of a file.

        Raises:
            TargetError: the text is no configuration; says which key is wrong.
        """
        try:
            table = parse_json(text)
        except ValueError as error:
            raise TargetError(f"no JSON: {error}", where="engine configuration") from error
        known = {f.name: f for f in dataclasses.fields(EngineConfig)}
        constants = {f.name: f for f in dataclasses.fields(Constants)}
        if not isinstance(table, dict):
            raise TargetError("a table of sizes was expected", where="engine configuration")
        inner = table.get("constants", {})
        if not isinstance(inner, dict):
            raise TargetError("constants must be a table", where="engine configuration")
        strange = sorted({*table} - {*known}) + sorted({*inner} - {*constants})
        if strange:
            raise TargetError(
                f"unknown keys {strange!r:.200}",
                where="engine configuration",
                hint=f"known are {', '.join((*known, *constants))}",
            )
        for name, value in (*table.items(), *inner.items()):
            wrong = isinstance(value, bool) != (name in ("nibbles", "tables"))
            number = isinstance(value, int) or (name == "bytes_per_cycle" and type(value) is float)
            if name != "constants" and (wrong or not number):
                raise TargetError(f"{name} cannot be {value!r:.80}", where="engine configuration")
        rest = {name: value for name, value in table.items() if name != "constants"}
        return EngineConfig(**rest, constants=Constants(**inner))


#: The engines with names, by their products of 8 bits; E256 is the one for an ECP5-85, E256-INT8
#: the same without lanes of 4 bits, E256-INT8-16K with half its features, so that an ECP5-85 has
#: room to place it for a faster clock, E256-2 has two post lanes a pixel, as all larger ones have.
ENGINES = {
    "e128": EngineConfig(pixels=2, feature_words=1 << 14),
    "e256": EngineConfig(),
    "e256-int8": EngineConfig(nibbles=False),
    "e256-int8-16k": EngineConfig(nibbles=False, feature_words=1 << 14),
    "e256-2": EngineConfig(post_lanes=2),
    "e512": EngineConfig(pixels=8, weight_rows=1 << 11, post_lanes=2),
    "e1024": EngineConfig(pixels=16, weight_rows=1 << 11, post_lanes=2),
    "e2048": EngineConfig(pixels=8, lanes=16, outputs=16, weight_rows=1 << 12, post_lanes=2),
}
