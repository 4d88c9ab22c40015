# SPDX-License-Identifier: Apache-2.0
"""Projects of the vendors' tools with a processor: design, DMA, registers, driver, bitstream.

Written for Vivado (Zynq-7000, Zynq UltraScale+) and Quartus (Cyclone V SoC); run where those tools
are, never here. Names of cores, pins and parameters are those of the vendors' catalogues.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitwright.build.soc import DRIVER, SocDesign, write_soc
from bitwright.build.soc_ports import CONTROL, CONTROL_SIGNALS, Signal
from bitwright.build.target import Processor, Target

SYSTEM = "system"
_DESIGN = "design"


@dataclass(frozen=True)
class _Project:
    """What a writer needs."""

    design: SocDesign
    target: Target
    processor: Processor
    clock_mhz: float

    @property
    def data_bits(self) -> int:
        """Of the design's memory ports."""
        return max(master.data_bits for master in self.design.masters)


def write_system_project(
    design_dir: Path, target: Target, out_dir: Path, *, clock_mhz: float
) -> Path:
    """Write a folder with the design, its driver, and a script that makes the bitstream.

    Args:
        design_dir: the generated design, one that `bitwright.build.soc.beyond_soc` accepts.
        target: a device with a processor.
        out_dir: replaced.
        clock_mhz: of the design.

    Returns:
        The script, ``build.tcl``; its first line says how to start it.

    Raises:
        GraphError: the design folder is not whole.
        ValueError: the target has no processor, or the design is beyond the project.
    """
    if target.processor is None:
        raise ValueError(f"target {target.name} has no processor")
    shutil.rmtree(out_dir, ignore_errors=True)
    design = write_soc(design_dir, out_dir / _DESIGN)
    shutil.move(out_dir / _DESIGN / DRIVER, out_dir / DRIVER)
    project = _Project(design, target, target.processor, clock_mhz)
    texts = _WRITERS[target.processor.kind](project)
    for name, text in texts.items():
        (out_dir / name).write_text(text)
    (out_dir / "README.txt").write_text(_readme(project, texts["build.tcl"].splitlines()[0]))
    return out_dir / "build.tcl"


def _readme(project: _Project, start: str) -> str:
    control = f"{project.processor.control:#x}"
    usage = "\n   ".join(line.format(control=control) for line in project.design.usage)
    return f"""\
{project.design.top} on {project.target.part} ({project.processor.board}).

NOT RUN: Bitwright has neither the vendor's tools nor the board. The RTL is linted and simulated,
the driver compiled, the scripts checked for their syntax.

1. {start.removeprefix("# ")}
2. Load the bitstream under Linux and the module u-dma-buf (github.com/ikwzm/udmabuf), with a buffer
   of a few megabytes: insmod u-dma-buf.ko udmabuf0=4194304
3. In {DRIVER}/:
   {usage}
"""


# --- Vivado --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ps:
    """Names of a processor in Vivado."""

    core: str
    rule: str
    external: str
    settings: str  # {mhz}: the clock, {bits}: of the memory port
    most_bits: int  # of a memory port; the interconnect makes narrow words of wide ones
    control: str
    memory: str
    clock: str
    reset: str
    clocks: tuple[str, ...]


#: Names of cores, ports and settings, each found in public block designs, since no tool here knows
#: them: processing_system7, smartconnect 1.0, proc_sys_reset 5.0 and FCLK_CLK0 (scripts of Red
#: Pitaya designs), zynq_ultra_ps_e with apply_board_preset (amd-yocto-hw-platforms of Xilinx,
#: config_bd.tcl), PSU__USE__S_AXI_GP2 as S_AXI_HP0_FPD and its width, maxihpm0_fpd_aclk and
#: saxihp0_fpd_aclk (ten designs each). Vivado itself has not read this.
_PS = {
    "zynq": _Ps(
        core="processing_system7",
        rule="processing_system7",
        external=' make_external "FIXED_IO, DDR"',
        settings="CONFIG.PCW_USE_M_AXI_GP0 1 CONFIG.PCW_USE_S_AXI_HP0 1 "
        "CONFIG.PCW_S_AXI_HP0_DATA_WIDTH {bits} CONFIG.PCW_EN_CLK0_PORT 1 "
        "CONFIG.PCW_EN_RST0_PORT 1 CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ {mhz}",
        most_bits=64,
        control="M_AXI_GP0",
        memory="S_AXI_HP0",
        clock="FCLK_CLK0",
        reset="FCLK_RESET0_N",
        clocks=("M_AXI_GP0_ACLK", "S_AXI_HP0_ACLK"),
    ),
    "zynqmp": _Ps(
        core="zynq_ultra_ps_e",
        rule="zynq_ultra_ps_e",
        external="",
        settings="CONFIG.PSU__USE__M_AXI_GP0 1 CONFIG.PSU__USE__M_AXI_GP1 0 "
        "CONFIG.PSU__USE__M_AXI_GP2 0 CONFIG.PSU__USE__S_AXI_GP2 1 "
        "CONFIG.PSU__SAXIGP2__DATA_WIDTH {bits} CONFIG.PSU__FPGA_PL0_ENABLE 1 "
        "CONFIG.PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ {mhz}",
        most_bits=128,
        control="M_AXI_HPM0_FPD",
        memory="S_AXI_HP0_FPD",
        clock="pl_clk0",
        reset="pl_resetn0",
        clocks=("maxihpm0_fpd_aclk", "saxihp0_fpd_aclk"),
    ),
}


def _vivado(project: _Project) -> Mapping[str, str]:
    ps = _PS[project.processor.kind]
    lines = [
        "# vivado -mode batch -source build.tcl",
        "set here [file normalize [file dirname [info script]]]",
        *_vivado_project(project),
        *_vivado_cells(project, ps),
        *_vivado_clocks(project, ps),
        *_vivado_buses(project, ps),
        *_vivado_build(project),
    ]
    return {"build.tcl": "\n".join(lines) + "\n"}


def _vivado_project(project: _Project) -> list[str]:
    """A project for the part, and for the board where Vivado knows it; the design's files."""
    design = project.design
    reads = [
        f"add_files -norecurse $here/{_DESIGN}/{name}" for name in (*design.files, *design.memories)
    ]
    reads += [
        f"set_property file_type SystemVerilog [get_files $here/{_DESIGN}/{name}]"
        for name in design.files
        if name.endswith(".sv")
    ]
    return [
        "# The newest version of a core in the catalogue.",
        "proc core {name} {",
        '  set found [get_ipdefs -all "xilinx.com:ip:${name}:*"]',
        '  if {[llength $found] == 0} { error "this Vivado has no core $name" }',
        "  return [lindex [lsort -dictionary $found] end]",
        "}",
        f"create_project -force system $here/build -part {project.target.part}",
        f"set boards [get_board_parts -quiet {{{project.processor.board_files or ''}}}]",
        "set preset 0",
        "if {[llength $boards] > 0} {",
        "  set_property board_part [lindex [lsort -dictionary $boards] end] [current_project]",
        "  set preset 1",
        "} else {",
        '  puts "WARNING: no files of this board: the processor keeps the memory and pins that its'
        ' boot loader sets"',
        "}",
        *reads,
        "update_compile_order -fileset sources_1",
    ]


def _vivado_cells(project: _Project, ps: _Ps) -> list[str]:
    """A block design with processor, design, interconnects and reset."""
    bits = min(project.data_bits, ps.most_bits)
    settings = ps.settings.format(mhz=f"{project.clock_mhz:g}", bits=bits)
    return [
        "create_bd_design system",
        f"set ps [create_bd_cell -type ip -vlnv [core {ps.core}] ps]",
        f"apply_bd_automation -rule xilinx.com:bd_rule:{ps.rule} -config"
        f' [subst {{{ps.external} apply_board_preset "$preset"}}] $ps',
        f"set_property -dict [list {settings}] $ps",
        f"create_bd_cell -type module -reference {project.design.top} accelerator",
        "create_bd_cell -type ip -vlnv [core smartconnect] control",
        "set_property -dict [list CONFIG.NUM_SI 1 CONFIG.NUM_MI 1] [get_bd_cells control]",
        "create_bd_cell -type ip -vlnv [core smartconnect] memory",
        f"set_property -dict [list CONFIG.NUM_SI {len(project.design.masters)} CONFIG.NUM_MI 1]"
        " [get_bd_cells memory]",
        "create_bd_cell -type ip -vlnv [core proc_sys_reset] reset",
    ]


def _vivado_clocks(project: _Project, ps: _Ps) -> list[str]:
    """The processor's clock and reset to every cell."""
    of_ps = tuple(f"ps/{name}" for name in ps.clocks)
    cells = ("accelerator", "control", "memory")
    clocked = (*of_ps, *(f"{cell}/aclk" for cell in cells), "reset/slowest_sync_clk")
    return [
        f"connect_bd_net [get_bd_pins ps/{ps.clock}] {_pins(clocked)}",
        f"connect_bd_net [get_bd_pins ps/{ps.reset}] [get_bd_pins reset/ext_reset_in]",
        "connect_bd_net [get_bd_pins reset/peripheral_aresetn] "
        + _pins(tuple(f"{cell}/aresetn" for cell in cells)),
    ]


def _pins(names: Sequence[str]) -> str:
    return " ".join(f"[get_bd_pins {name}]" for name in names)


def _vivado_buses(project: _Project, ps: _Ps) -> list[str]:
    """Registers and memory between processor and design, and their addresses."""
    memory = [
        f"connect_bd_intf_net [get_bd_intf_pins accelerator/{master.name}]"
        f" [get_bd_intf_pins memory/S{k:02d}_AXI]"
        for k, master in enumerate(project.design.masters)
    ]
    return [
        f"connect_bd_intf_net [get_bd_intf_pins ps/{ps.control}]"
        " [get_bd_intf_pins control/S00_AXI]",
        f"connect_bd_intf_net [get_bd_intf_pins control/M00_AXI]"
        f" [get_bd_intf_pins accelerator/{CONTROL}]",
        *memory,
        f"connect_bd_intf_net [get_bd_intf_pins memory/M00_AXI] [get_bd_intf_pins ps/{ps.memory}]",
        f"assign_bd_address -offset {project.processor.control:#010x} -range 4K"
        " -target_address_space [get_bd_addr_spaces ps/Data]"
        f" [get_bd_addr_segs accelerator/{CONTROL}/reg0]",
        "assign_bd_address",
        "validate_bd_design",
        "save_bd_design",
    ]


def _vivado_build(project: _Project) -> list[str]:
    """From the block design to the bitstream and its description for Linux."""
    return [
        "set diagram [get_files system.bd]",
        "set_property synth_checkpoint_mode None $diagram",
        "generate_target all $diagram",
        "add_files -norecurse [make_wrapper -files $diagram -top]",
        "set_property top system_wrapper [current_fileset]",
        "update_compile_order -fileset sources_1",
        "# In this process, from the folder where memory images are found.",
        f"cd $here/{_DESIGN}",
        f"synth_design -top system_wrapper -part {project.target.part}",
        "opt_design",
        "place_design",
        "phys_opt_design",
        "route_design",
        "report_utilization -hierarchical -file $here/utilisation.rpt",
        "report_timing_summary -file $here/timing.rpt",
        "write_bitstream -force $here/system.bit",
        "foreach folder {gen srcs} {",
        "  foreach file [glob -nocomplain"
        " $here/build/system.$folder/sources_1/bd/system/hw_handoff/*.hwh] {",
        "    file copy -force $file $here/system.hwh",
        "  }",
        "}",
    ]


# --- Quartus -------------------------------------------------------------------------------------

#: DDR3 of the DE0-Nano-SoC, by the names of altera_hps: what decides on pins and widths. From
#: github.com/dwesterg/atlas-soc-ghrd, scripts/create_ghrd_qsys_ATLAS_SOC_GHRD.tcl, commit 65a9ab6.
#: The memory itself is set up by the board's boot loader, which this project does not replace.
_DDR3 = {
    "MEM_VENDOR": "Other",
    "MEM_FORMAT": "DISCRETE",
    "MEM_CLK_FREQ_MAX": "800.0",
    "MEM_CLK_FREQ": "400.0",
    "MEM_VOLTAGE": "1.5V DDR3",
    "MEM_ROW_ADDR_WIDTH": "15",
    "MEM_COL_ADDR_WIDTH": "10",
    "MEM_BANKADDR_WIDTH": "3",
    "MEM_DQ_WIDTH": "32",
    "MEM_DQ_PER_DQS": "8",
    "MEM_IF_DM_PINS_EN": "1",
    "MEM_IF_DQSN_EN": "1",
    "MEM_CK_WIDTH": "1",
    "MEM_CS_WIDTH": "1",
    "MEM_CLK_EN_WIDTH": "1",
    "MEM_TCL": "7",
    "MEM_WTCL": "7",
    "MEM_DRV_STR": "RZQ/6",
    "MEM_RTT_NOM": "RZQ/6",
    "MEM_TRAS_NS": "35.0",
    "MEM_TRCD_NS": "13.75",
    "MEM_TRP_NS": "13.75",
    "MEM_TREFI_US": "7.8",
    "MEM_TRFC_NS": "300.0",
    "MEM_TFAW_NS": "37.5",
    "MEM_TRRD_NS": "7.5",
    "MEM_TRTP_NS": "7.5",
    "MEM_TWR_NS": "15.0",
    "MEM_TWTR": "4",
}
_LIGHTWEIGHT = 0xFF200000  # the bridge whose first address the processor sees there


def _quartus(project: _Project) -> Mapping[str, str]:
    return {
        "build.tcl": _quartus_build(project),
        "system.tcl": _qsys(project),
        f"{project.design.top}_hw.tcl": _component(project.design),
        "system.sdc": "create_clock -name clk50 -period 20.000 [get_ports clk_clk]\n"
        "derive_pll_clocks\nderive_clock_uncertainty\n",
    }


def _component(design: SocDesign) -> str:
    """The design as a component of Platform Designer."""
    lines = [
        "# Component of Platform Designer; read by system.tcl.",
        "package require -exact qsys 16.1",
        f"set_module_property NAME {design.top}",
        "set_module_property VERSION 1.0",
        f"set_module_property DISPLAY_NAME {{Bitwright {design.top}}}",
        "add_fileset QUARTUS_SYNTH QUARTUS_SYNTH {} {}",
        f"set_fileset_property QUARTUS_SYNTH TOP_LEVEL {design.top}",
    ]
    for name in design.files:
        kind = "SYSTEM_VERILOG" if name.endswith(".sv") else "VERILOG"
        path = f"{_DESIGN}/{name}"
        lines.append(f"add_fileset_file {name} {kind} PATH {path}")
    lines += [
        "add_interface clock clock end",
        "add_interface_port clock aclk clk Input 1",
        "add_interface reset reset end",
        "set_interface_property reset associatedClock clock",
        "set_interface_property reset synchronousEdges DEASSERT",
        "add_interface_port reset aresetn reset_n Input 1",
    ]
    lines += _interface(CONTROL, "axi4lite", "end", CONTROL_SIGNALS)
    for master in design.masters:
        lines += _interface(master.name, "axi4", "start", master.signals)
    return "\n".join(lines) + "\n"


def _interface(name: str, kind: str, side: str, signals: tuple[Signal, ...]) -> list[str]:
    lines = [
        f"add_interface {name} {kind} {side}",
        f"set_interface_property {name} associatedClock clock",
        f"set_interface_property {name} associatedReset reset",
    ]
    return lines + [
        f"add_interface_port {name} {name}_{signal} {signal} {direction.capitalize()} {width}"
        for signal, direction, width, _ in signals
    ]


def _qsys(project: _Project) -> str:
    """The script of Platform Designer: processor, PLL, design.

    Names of clock_source, altera_hps, altera_pll and their settings as in apache/tvm's
    vta-hw/hardware/intel/scripts/soc_system.tcl; Platform Designer itself has not read this.
    """
    settings = {
        **_DDR3,
        "F2S_Width": {64: "2", 128: "3"}[project.data_bits],
        "S2F_Width": "0",
        "LWH2F_Enable": "true",
        "F2SDRAM_Type": "",
        "F2SDRAM_Width": "",
        "MPU_EVENTS_Enable": "false",
    }
    pll = {
        "gui_reference_clock_frequency": "50.0",
        "gui_operation_mode": "direct",
        "gui_number_of_clocks": "1",
        "gui_output_clock_frequency0": f"{project.clock_mhz:g}",
        "gui_use_locked": "false",
    }
    offset = project.processor.control - _LIGHTWEIGHT
    lines = [
        "# Read by build.tcl: qsys-script --script=system.tcl",
        "package require -exact qsys 16.1",
        "create_system system",
        "set_project_property DEVICE_FAMILY {Cyclone V}",
        f"set_project_property DEVICE {{{project.target.part}}}",
        "add_instance clk clock_source",
        "set_instance_parameter_value clk clockFrequency 50000000.0",
        "set_instance_parameter_value clk clockFrequencyKnown true",
        "add_instance pll altera_pll",
        *(f"set_instance_parameter_value pll {k} {{{v}}}" for k, v in pll.items()),
        "add_instance hps altera_hps",
        *(f"set_instance_parameter_value hps {k} {{{v}}}" for k, v in settings.items()),
        f"add_instance accelerator {project.design.top} 1.0",
        "add_connection clk.clk pll.refclk",
        "add_connection clk.clk_reset pll.reset",
        "add_connection pll.outclk0 accelerator.clock",
        "add_connection pll.outclk0 hps.f2h_axi_clock",
        "add_connection pll.outclk0 hps.h2f_lw_axi_clock",
        "add_connection hps.h2f_reset accelerator.reset",
        f"add_connection hps.h2f_lw_axi_master accelerator.{CONTROL}",
        f"set_connection_parameter_value hps.h2f_lw_axi_master/accelerator.{CONTROL}"
        f" baseAddress {offset:#x}",
    ]
    for master in project.design.masters:
        lines.append(f"add_connection accelerator.{master.name} hps.f2h_axi_slave")
        path = f"accelerator.{master.name}/hps.f2h_axi_slave"
        lines.append(f"set_connection_parameter_value {path} baseAddress 0x0")
    lines += [
        "add_interface clk clock end",
        "set_interface_property clk EXPORT_OF clk.clk_in",
        "add_interface reset reset end",
        "set_interface_property reset EXPORT_OF clk.clk_in_reset",
        "add_interface memory conduit end",
        "set_interface_property memory EXPORT_OF hps.memory",
        "save_system system.qsys",
    ]
    return "\n".join(lines) + "\n"


def _quartus_build(project: _Project) -> str:
    lines = [
        "# quartus_sh -t build.tcl",
        "load_package flow",
        "cd [file normalize [file dirname [info script]]]",
        "set qsys $::quartus(quartus_rootpath)/sopc_builder/bin",
        # Memory images are looked for from the project's folder.
        *(
            f"file mkdir {Path(name).parent.as_posix()}\nfile copy -force {_DESIGN}/{name} {name}"
            for name in project.design.memories
        ),
        "exec -ignorestderr $qsys/qsys-script --script=system.tcl >@ stdout",
        "exec -ignorestderr $qsys/qsys-generate system.qsys --synthesis=VERILOG >@ stdout",
        "project_new system -overwrite",
        'set_global_assignment -name FAMILY "Cyclone V"',
        f"set_global_assignment -name DEVICE {project.target.part}",
        "set_global_assignment -name TOP_LEVEL_ENTITY system",
        'set_global_assignment -name VERILOG_MACRO "SYNTHESIS=1"',
        "set_global_assignment -name QIP_FILE system/synthesis/system.qip",
        f"set_global_assignment -name SEARCH_PATH {_DESIGN}",
        "set_global_assignment -name SDC_FILE system.sdc",
        "set_global_assignment -name GENERATE_RBF_FILE ON",
        "# FPGA_CLK1_50; the reset has no pin.",
        "set_location_assignment PIN_V11 -to clk_clk",
        'set_instance_assignment -name IO_STANDARD "3.3-V LVTTL" -to clk_clk',
        "set_instance_assignment -name VIRTUAL_PIN ON -to reset_reset_n",
        "export_assignments",
        "execute_module -tool map",
        "# Standards of the memory's pins, which Platform Designer wrote for this system.",
        "set pins system/synthesis/submodules/hps_sdram_p0_pin_assignments.tcl",
        "exec -ignorestderr $::quartus(binpath)/quartus_sta -t $pins system >@ stdout",
        "execute_module -tool fit",
        "execute_module -tool asm",
        "execute_module -tool sta",
        "project_close",
    ]
    return "\n".join(lines) + "\n"


_WRITERS = {"zynq": _vivado, "zynqmp": _vivado, "cyclonev-hps": _quartus}
