# SPDX-License-Identifier: Apache-2.0
"""What nextpnr and the packer of bitstreams are called and take, family by family.

A family that open tools place and route is an entry here, one in `bitwright.build.plls` and one
in `bitwright.build.pins`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.build.target import Target


@dataclass(frozen=True)
class PnrTools:
    """The open tools of one family.

    Attributes:
        nextpnr, packer: tools by their names in `bitwright.base.tools.finder`.
        devices: option of nextpnr by the beginning of a part's name.
        speed: whether nextpnr takes a speed grade.
        pins_option, free_pins: for a pin file, and for none.
        out_of_context: option for a top without pins; None: nextpnr has none for this family.
        config_option, config: of the textual configuration, and its file.
        bitstream: file that the packer makes.
        pack: the packer's arguments, for a configuration and a bitstream.
        count: packed resources, from used elements by nextpnr's names and its log.
    """

    nextpnr: str
    packer: str
    devices: Mapping[str, str]
    speed: bool
    pins_option: str
    free_pins: str
    out_of_context: str | None
    config_option: str
    config: str
    bitstream: str
    pack: Callable[[str, str], list[str]]
    count: Callable[[Mapping[str, int], str], Resources]

    def flags(self, target: Target) -> list[str]:
        """Device, package and speed grade, as options of nextpnr.

        Raises:
            TargetError: the part is none that nextpnr knows.
        """
        option = next((o for p, o in self.devices.items() if target.part.startswith(p)), None)
        if option is None:
            known = ", ".join(prefix.rstrip("-") for prefix in self.devices)
            raise TargetError(
                f"part {target.part!r} is none of {known}", where=f"target {target.name}"
            )
        speed = ["--speed", target.speed] if self.speed else []
        return [option, "--package", target.package, *speed]


def pnr_tools(target: Target) -> PnrTools:
    """The tools that place and route a target.

    Raises:
        TargetError: open tools do not place and route it.
    """
    tools = _TOOLS.get(target.family)
    if tools is None or not target.places_and_routes:
        raise TargetError(
            "is not placed and routed by open tools; only synthesis is done for it",
            where=f"target {target.name}",
            hint="choose ecp5-25k, ecp5-45k or ecp5-85k for Fmax and a bitstream",
        )
    return tools


def _ecp5(used: Mapping[str, int], log: str) -> Resources:
    del log
    return Resources(
        lut=used.get("TRELLIS_COMB", 0),
        ff=used.get("TRELLIS_FF", 0),
        dsp=used.get("MULT18X18D", 0),
        bram=used.get("DP16KD", 0),
    )


_ICE40_FF = re.compile(r"^Info:\s+(\d+) LCs used as (?:LUT4 and DFF|DFF only)\s*$", re.M)


def _ice40(used: Mapping[str, int], log: str) -> Resources:
    """A logic cell is a LUT and a flip-flop: it counts as a LUT whichever of them is in use."""
    return Resources(
        lut=used.get("ICESTORM_LC", 0),
        ff=sum(int(count) for count in _ICE40_FF.findall(log)),
        dsp=used.get("ICESTORM_DSP", 0),
        bram=used.get("ICESTORM_RAM", 0),
    )


_ECP5_SIZES = ("25F", "45F", "85F")
_TOOLS: Mapping[str, PnrTools] = {
    "ecp5": PnrTools(
        nextpnr="nextpnr-ecp5",
        packer="ecppack",
        devices={
            "LFE5U-12F-": "--12k",
            **{f"LFE5U-{size}-": f"--{size[:-1]}k" for size in _ECP5_SIZES},
            **{f"LFE5UM-{size}-": f"--um-{size[:-1]}k" for size in _ECP5_SIZES},
            **{f"LFE5UM5G-{size}-": f"--um5g-{size[:-1]}k" for size in _ECP5_SIZES},
        },
        speed=True,
        pins_option="--lpf",
        free_pins="--lpf-allow-unconstrained",
        out_of_context="--out-of-context",
        config_option="--textcfg",
        config="design.config",
        bitstream="design.bit",
        pack=lambda config, out: ["--compress", "--input", config, "--bit", out],
        count=_ecp5,
    ),
    "ice40": PnrTools(
        nextpnr="nextpnr-ice40",
        packer="icepack",
        devices={
            f"ICE40{name}-": f"--{name.lower()}"
            for name in ("LP384", "LP1K", "LP4K", "LP8K", "HX1K", "HX4K", "HX8K", "UP3K", "UP5K")
        },
        speed=False,
        pins_option="--pcf",
        free_pins="--pcf-allow-unconstrained",
        out_of_context=None,
        config_option="--asc",
        config="design.asc",
        bitstream="design.bin",
        pack=lambda config, out: [config, out],
        count=_ice40,
    ),
}

BITSTREAMS = tuple(tools.bitstream for tools in _TOOLS.values())
"""Names of bitstreams, of every family."""


def bitstream_in(folder: Path) -> Path | None:
    """The bitstream that `bitwright.build.implement` left in a folder; None if there is none."""
    return next((folder / name for name in BITSTREAMS if (folder / name).is_file()), None)
