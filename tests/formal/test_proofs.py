# SPDX-License-Identifier: Apache-2.0
"""Every proof holds, and every proof can fail: each falls by the faults that it is there for."""

from __future__ import annotations

import pytest
from tests.formal.cases import FAULTS, PROOFS, Fault
from tests.formal.prove import Proof, prove

from bitwright.rtl import LIBRARY

BY_NAME = {proof.name: proof for proof in PROOFS}
QUICK = (
    "skid",
    "fork",
    "fifo_depth3_style1",
    "axis_in",
    "dwc_up2",
    "dwc_down3",
    "concat",
    "axi_arbiter",
)
"""In the default tests; `make proofs`, which continuous integration runs too, does all."""


@pytest.mark.parametrize("name", QUICK)
def test_quick_proof(name: str) -> None:
    assert prove(BY_NAME[name]).proved


@pytest.mark.slow
@pytest.mark.parametrize("proof", [p for p in PROOFS if p.name not in QUICK], ids=lambda p: p.name)
def test_proof(proof: Proof) -> None:
    verdict = prove(proof)
    assert verdict.proved, verdict.said


def _title(fault: Fault) -> str:
    same = [other for other in FAULTS if other.proof == fault.proof]
    return f"{fault.proof}-{same.index(fault)}"


def _must_fall(fault: Fault) -> None:
    verdict = prove(BY_NAME[fault.proof], {fault.module: (fault.old, fault.new)})
    assert not verdict.proved, f"{fault} is not found"


def test_a_quick_proof_finds_a_fault() -> None:
    _must_fall(FAULTS[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[1:], ids=_title)
def test_fault_is_found(fault: Fault) -> None:
    _must_fall(fault)


def test_every_proved_module_has_two_faults() -> None:
    for harness in {proof.harness for proof in PROOFS}:
        modules = {proof.name for proof in PROOFS if proof.harness == harness}
        assert len([fault for fault in FAULTS if fault.proof in modules]) >= 2, harness
    assert {proof.module for proof in PROOFS} <= {path.stem for path in LIBRARY.glob("*.sv")}
