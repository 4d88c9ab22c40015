# SPDX-License-Identifier: Apache-2.0
"""Projects for vendor tools, to be run where those tools are; Bitwright does not run them."""

from __future__ import annotations

import shutil
from pathlib import Path

from bitwright.base.errors import TargetError
from bitwright.base.folders import make_folder
from bitwright.build.target import Target
from bitwright.sim.spec import Design, load_design


def write_vendor_project(
    design_dir: Path, target: Target, out_dir: Path, *, clock_mhz: float
) -> Path:
    """Write a folder with the design, a clock constraint and a script that implements it.

    The script places and routes out of context (Vivado) or with virtual pins (Quartus), and writes
    utilisation and timing reports beside itself. Memory images are found from the folder
    ``design``, where the sources lie.

    Args:
        design_dir: the generated design.
        target: a device of AMD (xc7, xcup) or Intel (cyclonev).
        out_dir: replaced.
        clock_mhz: frequency to aim at.

    Returns:
        The script: ``run.tcl``; its first line says how to start it.

    Raises:
        GraphError: the design folder is not whole.
        TargetError: there is no vendor project for this family.
    """
    design = load_design(design_dir)
    if target.family not in _WRITERS:
        raise TargetError(
            f"there is no vendor project for the family {target.family}",
            where=f"target {target.name}",
            hint=f"families with one are {', '.join(_WRITERS)}; ECP5 is implemented by open tools",
        )
    shutil.rmtree(out_dir, ignore_errors=True)
    for name in ("design.json", *design.files, *design.memories):
        copy = out_dir / "design" / name
        make_folder(copy.parent)
        shutil.copyfile(design_dir / name, copy)
    script = out_dir / "run.tcl"
    script.write_text(_WRITERS[target.family](design, target, out_dir, 1000.0 / clock_mhz))
    return script


def _vivado(design: Design, target: Target, out_dir: Path, period_ns: float) -> str:
    clock = f"create_clock -name clk -period {period_ns:.3f} [get_ports {design.clock}]\n"
    (out_dir / "clock.xdc").write_text(clock)
    lines = [
        "# vivado -mode batch -source run.tcl",
        "set here [file normalize [file dirname [info script]]]",
        f"create_project -in_memory -part {target.part}",
        *(f"read_verilog -sv $here/design/{name}" for name in design.files),
        *(f"read_mem $here/design/{name}" for name in design.memories),
        "read_xdc $here/clock.xdc",
        "cd $here/design",
        f"synth_design -top {design.top} -part {target.part} -mode out_of_context",
        "opt_design",
        "place_design",
        "phys_opt_design",
        "route_design",
        "report_utilization -hierarchical -file $here/utilisation.rpt",
        "report_timing_summary -file $here/timing.rpt",
        "write_checkpoint -force $here/routed.dcp",
    ]
    return "\n".join(lines) + "\n"


def _quartus(design: Design, target: Target, out_dir: Path, period_ns: float) -> str:
    clock = f"create_clock -name clk -period {period_ns:.3f} [get_ports {design.clock}]\n"
    (out_dir / "clock.sdc").write_text(clock)
    lines = [
        "# quartus_sh -t run.tcl",
        "load_package flow",
        "cd [file normalize [file dirname [info script]]]",
        f"project_new {design.top} -overwrite",
        'set_global_assignment -name FAMILY "Cyclone V"',
        f"set_global_assignment -name DEVICE {target.part}",
        f"set_global_assignment -name TOP_LEVEL_ENTITY {design.top}",
        'set_global_assignment -name VERILOG_MACRO "SYNTHESIS=1"',
        *(f"set_global_assignment -name SYSTEMVERILOG_FILE design/{name}" for name in design.files),
        "set_global_assignment -name SEARCH_PATH design",
        "set_global_assignment -name SDC_FILE clock.sdc",
        "set_instance_assignment -name VIRTUAL_PIN ON -to *",
        f"set_instance_assignment -name VIRTUAL_PIN OFF -to {design.clock}",
        "execute_flow -compile",
        "project_close",
    ]
    return "\n".join(lines) + "\n"


_WRITERS = {"xc7": _vivado, "xcup": _vivado, "cyclonev": _quartus}
VENDOR_FAMILIES = frozenset(_WRITERS)
