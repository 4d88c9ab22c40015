# SPDX-License-Identifier: Apache-2.0
"""Synthesis with Yosys: a design folder in, a mapped netlist and its resources out.

LUTs are those that the netlist fills on the device, as `bitwright.build.packing` counts them; the
fewer ones that ``stat`` counts are `SynthesisResult.cell_luts`. Netlists are kept by content:
sources, memory images, script and tool version.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.figures import Resources
from bitwright.base.files import parse_json
from bitwright.base.folders import make_folder
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.base.tools.finder import Tool, require, run_tool
from bitwright.base.tools.process import Tick, require_result
from bitwright.build.netlist import read_modules, readable
from bitwright.build.netlist_edits import edit_netlist
from bitwright.build.packing import added_luts, top_of
from bitwright.build.resources import count_resources
from bitwright.build.target import Target
from bitwright.sim.spec import Design, load_design
from bitwright.sim.toolchain import parameter_literal

NETLIST, STATISTICS, LOG, SCRIPT = "netlist.json", "stat.json", "yosys.log", "synth.ys"
TOP_GLUE = "(top)"
"""Key of :attr:`SynthesisResult.by_instance` for cells that belong to no instance."""
_KIND = "yosys"
#: What is done to netlists after Yosys.
_EDITS = ("bitwright.build.netlist_edits",)


@dataclass(frozen=True)
class SynthesisOptions:
    """How to synthesise.

    Attributes:
        dsp: let Yosys put multipliers into DSP blocks.
        extra: further options of the synthesis command. Not ``-dff``: in Yosys 0.70 it leaves
            undriven nets, which the check at the end of the script rejects.
    """

    dsp: bool = True
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class SynthesisResult:
    """A mapped netlist and what it takes.

    Attributes:
        netlist: JSON netlist, for nextpnr and for :func:`instance_resources`.
        log: everything that Yosys said.
        cells: number of cells of each type, after flattening.
        resources: what they fill of the device, packed.
        cell_luts: LUTs of the cells alone, before packing: Yosys's own count.
        by_instance: resources of each instance of the top module; cells are attributed by their
            names, which keep the hierarchy when it is flattened. The values add up to
            ``resources``.
        seconds, cpu_seconds, peak_memory: of the run that made the netlist, also when it comes
            from the cache.
        tool: the Yosys that made it.
        cached: whether it was taken from the cache.
    """

    netlist: Path
    log: Path
    cells: Mapping[str, int]
    resources: Resources
    cell_luts: float
    by_instance: Mapping[str, Resources] = field(repr=False)
    seconds: float
    cpu_seconds: float
    peak_memory: int
    tool: str
    cached: bool


def synthesise(
    design_dir: Path,
    target: Target,
    out_dir: Path,
    *,
    options: SynthesisOptions | None = None,
    timeout: float = 900.0,
    tick: Tick | None = None,
) -> SynthesisResult:
    """Map a design to a target's cells.

    Args:
        design_dir: folder with ``design.json``, sources and memory images.
        target: gives the family.
        out_dir: gets netlist, statistics, script and log.
        options: how to synthesise.
        timeout: seconds.
        tick: called with the seconds passed while Yosys runs.

    Raises:
        GraphError: the folder is not whole.
        ToolError: Yosys is missing, failed, ran out of time, or wrote no result.
    """
    design = load_design(design_dir)
    tool = require("yosys")
    make_folder(out_dir)
    commands = synthesis_commands(design, target, options or SynthesisOptions())
    reads = read_commands(design)
    key = content_key(
        tool.identity, reads, commands, design.top, code_key(*_EDITS), *_contents(design)
    )
    store = Store()
    if (entry := store.find(_KIND, key)) is not None:
        entry.bring(out_dir)
        return _result(out_dir, target.family, tool, entry.value, cached=True)
    ran = _run(tool, design, commands, target.family, out_dir, timeout, tick)
    names = (NETLIST, STATISTICS, LOG, SCRIPT)
    store.offer(_KIND, key, ran, {name: out_dir / name for name in names})
    return _result(out_dir, target.family, tool, ran, cached=False)


def _contents(design: Design) -> list[str | bytes]:
    """Names and contents of all files that a netlist depends on."""
    names = (*design.files, *design.memories)
    return [part for name in names for part in (name, (design.folder / name).read_bytes())]


def synthesis_commands(design: Design, target: Target, options: SynthesisOptions) -> list[str]:
    """The Yosys script of a design, without the lines that read sources and write results."""
    family = target.family
    flags = [*_FAMILY_FLAGS[family], *_dsp_flags(target, options), *options.extra]
    command = _FAMILY_COMMAND[family]
    return [
        f"hierarchy -top {design.top}{_parameters(design)}",
        f"proc {design.top}",
        f"check {design.top}",  # while its nets have their own names, for messages
        *_FAMILY_BEFORE.get(family, ()),
        # Nets of the top lend no names: a cell is named after a net inside the instance it is in.
        f"rename -hide {design.top}/w:*",
        " ".join([command, "-top", design.top, *flags]),
        "check -assert",
        "autoname",  # some flows leave $abc$ names, which hide the instance a cell came from
    ]


def _parameters(design: Design) -> str:
    """What the design's top is to be, where that is not what its source says of itself."""
    given = design.parameters.items()
    return "".join(f" -chparam {name} {parameter_literal(value)}" for name, value in given)


def _dsp_flags(target: Target, options: SynthesisOptions) -> list[str]:
    """iCE40 uses multipliers only when told, since most of its devices have none."""
    if target.family == "ice40":
        return ["-dsp"] if options.dsp and target.resources.dsp else []
    return [] if options.dsp else ["-nodsp"]


_FAMILY_COMMAND = {
    "ecp5": "synth_ecp5",
    "ice40": "synth_ice40",
    "xc7": "synth_xilinx -family xc7",
    "xcup": "synth_xilinx -family xcup",
    "cyclonev": "synth_intel_alm -family cyclonev",
}
_FAMILY_FLAGS: Mapping[str, tuple[str, ...]] = {
    "ecp5": (),
    "ice40": (),
    "xc7": ("-flatten", "-noiopad"),
    "xcup": ("-flatten", "-noiopad"),
    "cyclonev": ("-noiopad",),
}


# Without LUT RAM, a memory that asks for it is made of flip-flops; unasked, Yosys gives up.
_FAMILY_BEFORE: Mapping[str, tuple[str, ...]] = {
    "ice40": ('setattr -set ram_style "logic" */a:ram_style=distributed',),
}


def read_commands(design: Design, folder: str = "") -> list[str]:
    """The lines of a Yosys script that read the sources, from a folder (with its ``/``)."""
    return [f"read_verilog -sv -defer {_quote(folder + name)}" for name in design.files]


def _quote(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _run(
    tool: Tool,
    design: Design,
    commands: list[str],
    family: str,
    out_dir: Path,
    timeout: float,
    tick: Tick | None,
) -> dict[str, float]:
    # Relative paths: the WebAssembly Yosys has a /tmp of its own, and memory images are found
    # from the design's folder.
    design_dir = design.folder
    back = Path(os.path.relpath(out_dir.resolve(), design_dir.resolve()))
    for stale in (NETLIST, STATISTICS):
        (out_dir / stale).unlink(missing_ok=True)
    # There, too, "lib/x.sv" is looked for in "/lib" if the machine has such a folder.
    detour = f"../{design_dir.resolve().name}/" if "WebAssembly" in tool.origin else ""
    lines = [
        *read_commands(design, detour),
        *commands,
        f"tee -q -o {_quote(str(back / STATISTICS))} stat -json",
        f"write_json {_quote(str(back / NETLIST))}",
    ]
    (out_dir / SCRIPT).write_text("\n".join(lines) + "\n")
    completed = run_tool(
        tool,
        ["-s", str(back / SCRIPT)],
        cwd=design_dir,
        log=out_dir / LOG,
        timeout=timeout,
        tick=tick,
    )
    _reject_undriven(completed.text(), out_dir / LOG)
    for name in (STATISTICS, NETLIST):
        require_result(out_dir / name, completed, tool.name)
    edit_netlist(out_dir / NETLIST, family)
    for name in (NETLIST, LOG):
        _name_by_package(out_dir / name, tool)
    return completed.figures()


def _name_by_package(path: Path, tool: Tool) -> None:
    """Name the files of Yosys itself from its package on: where that lies tells of the machine."""
    if tool.package is not None:
        body = path.read_bytes()
        for folder in (tool.package.parent, tool.package.parent.resolve()):
            place = f"{folder}{os.sep}"
            for form in (place, json.dumps(place)[1:-1]):
                body = body.replace(os.fsencode(form), b"")
        path.write_bytes(body)


_UNDRIVEN = re.compile(
    r"^Warning: (?:Wire .* is used but has no driver|multiple conflicting drivers for .*)", re.M
)


def _reject_undriven(log: str, where: Path) -> None:
    """Nets without a driver become anything during synthesis: what simulates is not what is built.

    Raises:
        ToolError: there is one.
    """
    found = list(dict.fromkeys(_UNDRIVEN.findall(log)))
    if found:
        raise ToolError(
            "the design has nets without a driver or with several:\n" + "\n".join(found[:5]),
            where=f"yosys (log: {where})",
            hint="this is a bug in the RTL",
        )


def _result(
    out_dir: Path, family: str, tool: Tool, figures: Mapping[str, float], *, cached: bool
) -> SynthesisResult:
    cells = parse_statistics((out_dir / STATISTICS).read_text(), where=str(out_dir / STATISTICS))
    by_instance = instance_resources(out_dir / NETLIST, family)
    return SynthesisResult(
        netlist=out_dir / NETLIST,
        log=out_dir / LOG,
        cells=cells,
        resources=sum(by_instance.values(), Resources()),
        cell_luts=count_resources(family, cells).lut,
        by_instance=by_instance,
        seconds=figures["seconds"],
        cpu_seconds=figures["cpu_seconds"],
        peak_memory=int(figures["peak_memory"]),
        tool=tool.identity,
        cached=cached,
    )


def parse_statistics(text: str, *, where: str) -> dict[str, int]:
    """Cells of each type in the whole design, from ``stat -json``; instances are none.

    Yosys prints words before and after the JSON object in some versions; they are skipped.

    Raises:
        ToolError: there is no JSON object, it has no cell counts, or it counts no cell at all.
    """
    start, end = text.find("{"), text.rfind("}")
    try:
        table = parse_json(text[start : end + 1])
        counts = table["design"]["num_cells_by_type"]
        kept = table.get("modules", {})  # instances of modules that were not flattened
        cells = {
            str(name).removeprefix("\\"): int(number)
            for name, number in counts.items()
            if name not in kept and f"\\{name}" not in kept
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ToolError(f"the statistics cannot be read: {error!r}", where=where) from error
    if not cells:
        raise ToolError(
            "synthesis left no cell: everything was optimised away",
            where=where,
            hint="an output that does not depend on any input, or constant weights of 0, does this",
        )
    return cells


def instance_resources(netlist: Path, family: str, within: str = "") -> dict[str, Resources]:
    """Resources of each instance of the top module of a netlist, packed.

    Args:
        netlist: JSON netlist; what is flattened in it counts by the names of its cells, an instance
            whose module was kept (Yosys' attribute `keep_hierarchy`) as that module.
        family: of the cells.
        within: look one level down, inside this instance of the top module; the rest counts as
            :data:`TOP_GLUE`.

    Raises:
        ToolError: the netlist cannot be read or has no top module.
    """
    modules = read_modules(netlist)
    with readable(netlist):
        top, kept = top_of(modules, netlist), {}
        for name in {cell["type"] for cell in top["cells"].values()} & set(modules):
            if not modules[name]["attributes"].keys() & {
                "blackbox",
                "whitebox",
            }:  # no model of a cell
                parts = _instances(modules[name], {}, family)
                kept[name] = sum(parts.values(), Resources())
        return _instances(top, kept, family, within)


def _instances(
    module: Mapping[str, Any], kept: Mapping[str, Resources], family: str, within: str = ""
) -> dict[str, Resources]:
    """What each instance in a module takes.

    Args:
        kept: what the modules take whose instances were not flattened.
    """
    counters: dict[str, Counter[str]] = {}
    found: dict[str, Resources] = {}
    for name, cell in module["cells"].items():
        if cell["type"] in kept:
            found[name] = kept[cell["type"]]
        else:
            counters.setdefault(owner_of(name, within), Counter())[cell["type"]] += 1
    for owner, cells in sorted(counters.items()):
        found[owner] = found.get(owner, Resources()) + count_resources(family, cells)
    for name, luts in added_luts(module, family).items():
        owner = owner_of(name, within)
        found[owner] = found.get(owner, Resources()) + Resources(lut=luts)
    return found


def owner_of(cell: str, within: str = "") -> str:
    """The instance that a flattened cell belongs to, from its name.

    >>> owner_of("i_conv1.i_tree.sum_q_TRELLIS_FF_Q_3")
    'i_conv1'
    """
    name = cell.removeprefix("$flatten").lstrip("\\")
    if within:
        if not name.startswith(within + "."):
            return TOP_GLUE
        name = name[len(within) + 1 :]
    first, dot, _ = name.partition(".")
    return first.lstrip("\\") if dot and not first.startswith("$") else TOP_GLUE
