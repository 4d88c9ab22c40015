# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a product: the fastest of those that can, measured where it is needed.

All engines are to give the same numbers, so the choice is one of time alone. Each is checked on
the shape it is chosen for: one whose numbers differ from the last engine's, the reference, is not
used for it, and a warning says so. Nor is one that has no product of these sizes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.base.plugins import load_attribute, load_value, plugged
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import (
    Engine,
    Geometry,
    NoProductError,
    Product,
    Size,
)
from bitwright.low_precision.arithmetic.int_mm import IntMatrixEngine
from bitwright.low_precision.arithmetic.integer import IntegerEngine
from bitwright.low_precision.arithmetic.operands import Operand

_log = logging.getLogger(__name__)

#: Timed runs of an engine, of which the shortest counts; one before them is not timed.
_RUNS = 3
#: Units of x86 processors that multiply and add 8-bit integers.
_BYTE_UNITS = ("avx512_vnni", "avx_vnni", "amx_int8")
#: An engine whose first run takes so many times the best of another is not timed further.
_HOPELESS = 3.0


@dataclass(frozen=True)
class Case:
    """What a choice depends on: a product, the shapes of its operands, the geometry of the layer,
    the operands' word lengths (0 for formats that are no integers) and device, torch's threads.
    """

    product: Product
    left: tuple[int, ...]
    right: tuple[int, ...]
    geometry: Geometry
    bits: tuple[int, int]
    device: str
    threads: int


@dataclass(frozen=True)
class Choice:
    """An engine, and the milliseconds of each that was timed (none where nothing was compared).

    Attributes:
        engine: runs the product.
        milliseconds: by name of an engine, its shortest time.
        wrong: names of engines that gave other numbers than the reference, or none.
    """

    engine: Engine
    milliseconds: Mapping[str, float]
    wrong: tuple[str, ...] = ()


#: What the process has measured: the name of the engine chosen, the milliseconds of each, and the
#: names of wrong ones. Not the engine itself: it has memory of its own, which two networks in two
#: threads cannot share.
_MEASURED: dict[
    tuple[Case, bool, tuple[str, ...]], tuple[str, Mapping[str, float], tuple[str, ...]]
] = {}


class ChoosingEngine(Engine):
    """An engine made of others: each product runs on the fastest one that supports it.

    The last engine is the reference: it supports every product that another one does, and an engine
    whose first result differs from its own, in any bit, does not run products of that shape. With
    ``preferred`` nothing is timed: the first engine that supports a product and passes runs it.
    With ``demanded`` the first one must support every product.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        name: str,
        preferred: bool = False,
        demanded: bool = False,
    ) -> None:
        self.name = name
        self._demanded = demanded
        self._engines = tuple(engines)
        self._preferred = preferred
        self.choices: dict[Case, Choice] = {}

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        return any(e.supports(product, left, right, geometry) for e in self._engines)

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        device, threads = str(left.tensor.device), torch.get_num_threads()
        shapes, bits = (tuple(left.shape), tuple(right.shape)), (left.bits, right.bits)
        case = Case(product, *shapes, geometry, bits, device, threads)
        task = (product, left, right, geometry, size)
        choice = self.choices.get(case)
        if choice is not None:
            return choice.engine.multiply(*task)
        able = [e for e in self._engines if e.supports(*task[:4])]
        if self._demanded and self._engines[0] not in able:
            words = " and ".join(f"{b} bits" if b else "no integers" for b in bits)
            raise RecipeError(
                f"the engine {self.name!r} does not multiply operands of {words} "
                f"({product.value}, {tuple(left.shape)} and {tuple(right.shape)})",
                where="low_precision.engine",
                hint="use levels that it has, or engine: auto",
            )
        if not able:
            raise ValueError(f"no engine of {self.name!r} computes {case}")
        key = (case, self._preferred, tuple(engine.name for engine in able))
        if key in _MEASURED:
            name, milliseconds, wrong = _MEASURED[key]
            engine = next(engine for engine in able if engine.name == name)
            self.choices[case] = Choice(engine, milliseconds, wrong)
            return engine.multiply(*task)
        if len(able) == 1:
            self.choices[case] = Choice(able[0], {})
            return able[0].multiply(*task)
        compare = _first_right if self._preferred else _fastest
        out, choice = compare(able, lambda engine: engine.multiply(*task), case)
        self.choices[case] = choice
        _MEASURED[key] = choice.engine.name, choice.milliseconds, choice.wrong
        return out


def make_engine(name: str) -> ChoosingEngine:
    """The engine of a setting.

    ``auto``: the fastest for each product, of those that the machine has units for. ``integer``:
    integers wherever an integer engine can, else emulation (formats that are no integers, grouped
    convolutions). ``emulated``: emulation. Any other: the plugged-in one of this name, or the
    user's own, for every product.

    Raises:
        RecipeError: what the user's function gives is no engine.
        ModelError: it cannot be imported, or fails.
    """
    emulated = EmulatedEngine()
    if name == "emulated":
        return ChoosingEngine([emulated], name=name)
    if name not in ("auto", "integer"):
        place = plugged("engines").get(name)
        where = "low_precision.engine"
        own = load_attribute(place)() if place else load_value(name, where, Engine)
        return ChoosingEngine([own, emulated], name=name, preferred=True, demanded=True)
    engines: list[Engine] = [IntegerEngine(), IntMatrixEngine(), emulated]
    if name == "auto" and not _multiplies_bytes():
        del engines[1]  # to time it would take longer and more memory than training does
    return ChoosingEngine(engines, name=name, preferred=name == "integer")


def _multiplies_bytes() -> bool:
    """Whether torch's 8-bit matrix product has a chance: there are units for it."""
    if torch.cuda.is_available():
        return True
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(unit) for unit in _BYTE_UNITS)


def _first_right(
    engines: Sequence[Engine], call: Callable[[Engine], Tensor], case: Case
) -> tuple[Tensor, Choice]:
    """The reference's result, and the first engine that gives the same."""
    *others, reference = engines
    expected = call(reference)
    wrong: list[str] = []
    for engine in others:
        if _agrees(engine, _tried(engine, call, case), expected, case):
            return expected, Choice(engine, {}, tuple(wrong))
        wrong.append(engine.name)
    return expected, Choice(reference, {}, tuple(wrong))


def _fastest(
    engines: Sequence[Engine], call: Callable[[Engine], Tensor], case: Case
) -> tuple[Tensor, Choice]:
    """The reference's result, and the fastest engine that gives the same, in every run."""
    reference = engines[-1]
    expected = call(reference)
    found: dict[str, float] = {}
    wrong: list[str] = []
    for engine in engines:
        best = float("inf")
        for run in range(1 + _RUNS):
            begin = _now(expected.device)
            out = _tried(engine, call, case)
            spent = (_now(expected.device) - begin) * 1e3
            if engine is not reference and not _agrees(engine, out, expected, case):
                wrong.append(engine.name)
                break
            if run:
                best = min(best, spent)
            elif found and spent > _HOPELESS * min(found.values()):
                best = spent
                break
        if engine.name not in wrong:
            found[engine.name] = best
    fastest = min((e for e in engines if e.name in found), key=lambda e: found[e.name])
    return expected, Choice(fastest, found, tuple(wrong))


def _tried(engine: Engine, call: Callable[[Engine], Tensor], case: Case) -> Tensor | None:
    """What an engine gives; None of one that has no product of these sizes after all."""
    try:
        return call(engine)
    except NoProductError as error:
        _log.warning("the engine %s is not used for %s: %s", engine.name, case, error)
        return None


def _agrees(engine: Engine, out: Tensor | None, expected: Tensor, case: Case) -> bool:
    if out is None:
        return False
    if torch.equal(out, expected):
        return True
    _log.warning(
        "the engine %s gives other numbers than the reference, so it is not used, for %s",
        engine.name,
        case,
    )
    return False


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
