# SPDX-License-Identifier: Apache-2.0
"""The recipe's section ``hardware``, and what every section is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from bitwright.base.described import Described, is_file_name
from bitwright.base.files import MOST_TEXT, read_text
from bitwright.base.records import Mhz

Count = Annotated[int, Field(ge=1, strict=True)]
Positive = Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)]


class Section(Described):
    """A part of the recipe: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Budget(Section):
    """Device resources that a design may use; a resource that is not named is not limited.

    Attributes:
        lut: look-up tables, as the device is filled: after packing.
        ff: flip-flops.
        bram: block RAMs.
        dsp: multipliers.
    """

    lut: Count | None = None
    ff: Count | None = None
    bram: Annotated[int, Field(ge=0, strict=True)] | None = None
    dsp: Annotated[int, Field(ge=0, strict=True)] | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Budget:
        if all(value is None for value in self.model_dump().values()):
            raise ValueError("names no resource; give at least one of lut, ff, bram, dsp")
        return self


class WeightsSection(Section):
    """Weights that are read from a memory outside instead of being kept in the device.

    Attributes:
        external: layers (matrix units of the hardware graph) whose weights are outside, or ``all``;
            with a folding file the file says which (``mem_mode``), and this stays empty.
        port_bits: width of the AXI4 port that reads them.
        gbytes_per_s: bandwidth of the memory (1e9 bytes); default what the port can take.
        latency_cycles: from a request to its data; the buffers cover so many.
    """

    external: tuple[str, ...] | Literal["all"] = ()
    port_bits: Literal[32, 64, 128, 256, 512, 1024] = 64
    gbytes_per_s: Positive | None = None
    latency_cycles: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 64


class HardwareSection(Section):
    """What to build it for.

    Attributes:
        kind: ``dataflow``, a circuit of the network's own; or ``engine``, a program for the
            programmed engine, which runs any network on one circuit.
        engine: of kind ``engine``: a name of `bitwright.engine.ENGINES`, or a JSON file of an
            `EngineConfig`. Its size is fixed: of the goals below it takes none, and says whether
            it reaches ``target_fps``.
        target: a name of ``bitwright list targets``.
        clock_mhz: clock to implement for; ``synth_clk_period_ns`` says the same as a period.
        target_fps: images per second to reach, with as little hardware as possible; where place
            and route reaches a lower clock, the folding is searched again for that one; else
        fill: share of the target's LUTs, block RAMs and multipliers to fill, as fast as possible;
        budget: the same with counts; if none of the three is given, ``fill: 0.5``.
        rate_clock_mhz: clock at which the search keeps target_fps, if less than clock_mhz; a build
            notes here what place and route has reached.
        folding_config_file: PE and SIMD by hand (FINN's JSON), instead of a search.
        weights: layers whose weights are read from outside, and the memory they lie in.
        devices: how many targets of this kind the network may be spread over: with target_fps at
            most so many, else all of them, each filled as said, for the best rate.
        blocks: hardware blocks of your own: functions named ``package.module:name`` that give a
            `bitwright.hw.OwnBlock`.
    """

    kind: Literal["dataflow", "engine"] = "dataflow"
    engine: str = "e256"
    target: str = "ecp5-45k"
    clock_mhz: Mhz = 100.0
    target_fps: Positive | None = None
    rate_clock_mhz: Mhz | None = None
    fill: Annotated[float, Field(gt=0, le=1)] | None = None
    budget: Budget | None = None
    folding_config_file: Path | None = None
    weights: WeightsSection = WeightsSection()
    devices: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    blocks: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _accept_period(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "synth_clk_period_ns" not in fields:
            return fields
        rest = {key: value for key, value in fields.items() if key != "synth_clk_period_ns"}
        if "clock_mhz" in rest:
            raise ValueError("give clock_mhz or synth_clk_period_ns, not both")
        try:
            period = float(fields["synth_clk_period_ns"])
            if not 0 < period < float("inf"):
                raise ValueError
        except (TypeError, ValueError):
            given = fields["synth_clk_period_ns"]
            message = f"synth_clk_period_ns should be a positive number, found {given!r}"
            raise ValueError(message) from None
        return {**rest, "clock_mhz": 1000.0 / period}

    @model_validator(mode="after")
    def _one_goal(self) -> HardwareSection:
        named = ("target_fps", "fill", "budget", "folding_config_file")
        goals = [name for name in named if getattr(self, name) is not None]
        own = self.folding_config_file is not None or self.blocks or self.devices > 1
        if self.kind == "engine" and own:
            raise ValueError("folding_config_file, blocks and devices are of kind dataflow")
        if self.kind == "engine" and self.weights.external:
            raise ValueError("an engine's weights always come from outside: leave weights out")
        if len(goals) > 1:
            raise ValueError(f"give only one of {', '.join(goals)}")
        if self.rate_clock_mhz is not None and self.target_fps is None:
            raise ValueError("rate_clock_mhz is the clock of a target_fps, and there is none")
        if self.folding_config_file is not None and self.weights.external:
            raise ValueError("with a folding file, its mem_mode says which weights are external")
        if self.devices > 1 and (self.folding_config_file is not None or self.weights.external):
            raise ValueError("several devices take no folding file and no external weights")
        return self


def hardware_facts(section: HardwareSection) -> dict[str, Any]:
    """What a design depends on, for keys: the section, with what is in the files that it names (a
    folding, a target of the user's own) in the place of their names.

    Raises:
        DataError: a file cannot be read.
    """
    fields = section.model_dump(mode="json")
    if section.folding_config_file is not None:
        fields["folding_config_file"] = read_text(section.folding_config_file, most=MOST_TEXT)
    if section.kind == "dataflow":
        del fields["kind"], fields["engine"]
    elif Path(section.engine).suffix == ".json":
        fields["engine"] = read_text(Path(section.engine), most=MOST_TEXT)
    fields["target"] = described_by(section.target)
    return fields


def described_by(name: str) -> str:
    """What a target or a board is, for keys: its name, or what is in the file of the user's own.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(name)
    return read_text(path, most=MOST_TEXT) if is_file_name(name) and path.is_file() else name
