# SPDX-License-Identifier: Apache-2.0
"""The library: clean under `verilator -Wall`, keeps the house rules, rejects bad parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.verilator.lib_cases import CASES, Case

from bitwright.base.tools.finder import require
from bitwright.base.tools.process import output_of
from bitwright.rtl import library_files, needed_modules
from bitwright.sim import lint

FILES = {path.stem: path for path in library_files()}
ONE_PER_MODULE = list({case.module: case for case in CASES}.values())


def _files(module: str) -> list[Path]:
    return [FILES[name] for name in needed_modules({module})]


@pytest.mark.parametrize("module", FILES)
def test_lint_with_default_parameters(module: str) -> None:
    assert lint(_files(module), module) == ""
    assert lint(_files(module), module, checks=False) == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lint_at_parameter_points(case: Case) -> None:
    assert lint(_files(case.module), case.module, case.parameters) == ""


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_house_rules(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert lines[0] == "// SPDX-License-Identifier: Apache-2.0"
    assert lines[-1] == "`default_nettype wire"
    assert "`default_nettype none" in lines
    assert re.findall(r"^module (\w+)", text, re.MULTILINE) == [path.stem]
    assert len(lines) <= 200
    assert max(map(len, lines)) <= 100
    assert "\t" not in text and "lint_off" not in text
    # Yosys reads -Width'(x) as (-Width)'(x), silently.
    assert not re.search(r"[=(?:,<&|^+*{]\s*-\s*\w+'\(", text)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("mem_ram", ['ramstyle = "M10K, no_rw_check"', 'ramstyle = "MLAB, no_rw_check"']),
        ("mem_rom", ['romstyle = "M10K"', 'romstyle = "logic"']),
    ],
)
def test_memories_have_the_attributes_that_quartus_knows(module: str, found: list[str]) -> None:
    tool = require("verilator")
    argv = [*tool.command, "-E", "-P", str(FILES[module])]
    texts = [
        output_of(
            [*argv, *defined],
            cwd=FILES[module].parent,
            name="verilator",
            env=dict(tool.env),
            timeout=60,
        )
        for defined in (["-DALTERA_RESERVED_QIS"], [])
    ]
    for attribute in found:
        assert attribute in texts[0] and attribute not in texts[1]
    assert "ram_style" not in texts[0] and 'ram_style = "block"' in texts[1]


@pytest.mark.parametrize(
    ("module", "parameters", "message"),
    [
        ("stream_dwc", {"InWidth": 6, "OutWidth": 4}, "must divide the other"),
        ("stream_fifo", {"Depth": 1}, "Depth at least 2"),
        ("stream_pad", {"WaitForInput": 1, "Top": 0, "Left": 0}, "border in front of the first"),
        ("stream_window", {"BufPixels": 10}, "kernel must fit"),
        ("stream_window", {"Fold": 6, "Groups": 4}, "Groups must divide Fold"),
        ("window_parallel", {"Cols": 2}, "kernel must fit"),
        ("window_parallel", {"Groups": 3}, "Groups must divide DataWidth"),
        ("matvec", {"SIMD": 5}, "SIMD must divide MW"),
        ("matvec", {"ActBipolar": 1}, "bipolar operand is one bit"),
        ("matvec", {"ActExp": -1}, "room for the sign"),
        (
            "depthwise",
            {"IndexWidth": 2, "WeightBipolar": 1, "WeightWidth": 1},
            "no bipolar weights",
        ),
        ("mul_float", {"WeightExp": 0}, "must have an exponent"),
        ("float_split", {"Low": 3}, "Low one of 0, 1, 2"),
        ("round_float", {"OutLo": 1}, "out of range"),
        ("pool_max", {"ElemCode": 1, "ElemWidth": 1}, "sign and a magnitude"),
        ("axi_weights", {"CellBeats": 3}, "CellWords must fit"),
        ("axi_weights", {"Offset": 8}, "Burst is at most 256"),
        ("axi_weights", {"Burst": 64, "DataWidth": 1024, "WordWidth": 9}, "Burst is at most 256"),
        ("axi_weights", {"Burst": 24}, "no burst may cross 4 KiB"),
        ("axi_weights", {"Burst": 12, "DataWidth": 48}, "no burst may cross 4 KiB"),
        ("axi_arbiter", {"DataWidth": 48}, "power of two"),
        ("axi_arbiter", {"EpochWidth": 0}, "EpochWidth must be at least 1"),
        ("threshold", {"ThrWidth": 11}, "ThrWidth that holds x"),
        ("threshold", {"Bits": 9}, "1 <= Bits <= 8"),
        ("requant", {"OutHi": 300}, "must fit into OutWidth"),
        ("top_k", {"Classes": 20}, "IndexWidth must hold"),
        ("top_k", {"K": 2, "PE": 2}, "PE 1 if it is more than 1"),
        ("depthwise", {"PE": 3}, "PE must divide Channels"),
        ("depthwise", {"SIMD": 2}, "SIMD must divide Window"),
        ("stream_add", {"MulB": 0}, "must not be 0"),
        ("stream_concat", {"FoldB": 0}, "at least 1"),
        ("stream_concat", {"OutWidth": 3}, "OutWidth must be at least InWidth"),
        ("pool_sum", {"SumWidth": 3}, "OutWidth must be at least InWidth"),
        ("stream_upsample", {"FactorV": 0}, "at least 1"),
        ("lookup", {"InWidth": 17}, "InWidth must be 1 to 16"),
        ("axis_out", {"TdataWidth": 12}, "whole bytes"),
        ("mem_rom", {"Depth": 2, "Rows": 2, "Wait": 1}, "of 2 words or more"),
    ],
)
def test_bad_parameters_stop_elaboration(
    module: str, parameters: dict[str, int], message: str
) -> None:
    assert message in lint(_files(module), module, parameters)
