# SPDX-License-Identifier: Apache-2.0
"""Proofs of the hardware library: Yosys makes an and-inverter graph whose outputs are assertions
of a harness, ABC proves that none can fall (PDR, unbounded) or that none does within a number of
cycles (bounded model checking). The steps are those of SymbiYosys; both programs are native, from
the package pyosys. Results are kept by content."""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.store import Store, content_key
from bitwright.base.tools.finder import require, run_tool
from bitwright.rtl import LIBRARY, needed_modules

RTL = Path(__file__).parent / "rtl"
_KIND = "proof"
_TIMEOUT_S = 300

# From the design to and-gates: what SymbiYosys does for the engine "abc". Undefined values and
# registers without a reset are free.
_SCRIPT = """
prep -flatten -top {top}
memory_nordff
async2sync
chformal -assume -early
opt_clean
formalff -setundef -clk2ff -ff2anyinit
chformal -live -fair -cover -remove
chformal -lower
setundef -undriven -anyseq
delete -output
opt -full
memory_map -formal
techmap
opt -fast
formalff -clk2ff -ff2anyinit
simplemap
dffunmap
setundef -undriven -anyseq
aigmap
opt_clean
write_aiger -I -B -zinit -no-startoffset design.aig
"""


@dataclass(frozen=True)
class Proof:
    """One module at one parameter point.

    Attributes:
        harness: module ``prove_<harness>`` in ``rtl``.
        module: of the library, that it is about.
        parameters: of the harness.
        depth: cycles from any first reset that are looked at; 0: all, unbounded.
        memories: images of the module's memories.
    """

    harness: str
    module: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    depth: int = 0
    memories: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        values = "_".join(f"{key.lower()}{value}" for key, value in self.parameters.items())
        return f"{self.harness}{'_' if values else ''}{values}"


@dataclass(frozen=True)
class Verdict:
    """What came out: `proved`, or what ABC said of the assertion that falls; processor time."""

    proved: bool
    said: str
    seconds: float


def abc_program() -> Path | None:
    """ABC, beside the Yosys of the package pyosys; None: it is not here."""
    package = require("yosys").package
    program = package / "yosys-abc" if package else None
    return program if program and program.is_file() else None


def prove(proof: Proof, change: Mapping[str, tuple[str, str]] | None = None) -> Verdict:
    """Prove it, or the same of a library in which one text of some modules is another.

    Raises:
        ToolError: Yosys or ABC fail, or take too long.
    """
    sources = _sources(proof, change or {})
    tool, abc = require("yosys"), abc_program()
    if abc is None:
        raise ToolError("yosys-abc is not here", hint="pip install pyosys")
    top = f"prove_{proof.harness}"
    script = "".join(f"read_verilog -sv -formal {name}\n" for name in sources)
    for key, value in proof.parameters.items():
        script += f"chparam -set {key} {value} {top}\n"
    script += _SCRIPT.format(top=top)
    engine = f"bmc3 -F {proof.depth}" if proof.depth else "pdr"
    memories = dict(proof.memories)
    key = content_key(tool.identity, script, engine, *sources, *sources.values(), *memories,
                      *memories.values())  # fmt: skip
    store = Store()
    if (entry := store.find(_KIND, key)) is not None:
        return Verdict(bool(entry.value["proved"]), str(entry.value["said"]),
                       float(entry.value["seconds"]))  # fmt: skip
    begun = _processor_time()
    with tempfile.TemporaryDirectory(prefix="bitwright-") as name:
        folder = Path(name)
        for file, text in (sources | memories).items():
            (folder / file).write_text(text)
        (folder / "prove.ys").write_text(script)
        log = folder / "yosys.log"
        run_tool(tool, ["-s", "prove.ys"], cwd=folder, log=log, timeout=_TIMEOUT_S)
        said = _abc(abc, engine, folder)
    bounded = re.search(r"No output asserted in (\d+) frames", said)
    reached = int(bounded[1]) if bounded else 0
    proved = "Property proved" in said or 0 < proof.depth <= reached
    if not proved and "was asserted in frame" not in said:
        raise ToolError(f"ABC gave no verdict: {said[-500:]}", where=proof.name)
    found = re.search(r"Output .* asserted in frame \d+|No output .*|Property proved", said)
    verdict = Verdict(proved, found[0] if found else "", _processor_time() - begun)
    store.offer(_KIND, key, {"proved": verdict.proved, "said": verdict.said,
                             "seconds": round(verdict.seconds, 2)}, {})  # fmt: skip
    return verdict


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sources(proof: Proof, change: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """File name -> text: of the modules, and of the harness with those that it needs."""
    modules = needed_modules({proof.module}) + needed_modules(_others(proof))
    texts = {f"{name}.sv": (LIBRARY / f"{name}.sv").read_text() for name in sorted(set(modules))}
    for module, (old, new) in change.items():
        text = texts[f"{module}.sv"]
        if text.count(old) != 1:
            raise ToolError(f"{old!r} stands {text.count(old)} times in {module}")
        texts[f"{module}.sv"] = text.replace(old, new)
    own: dict[str, str] = {}
    waiting = [f"prove_{proof.harness}"]
    while waiting:
        name = waiting.pop()
        if f"{name}.sv" not in own:
            own[f"{name}.sv"] = text = (RTL / f"{name}.sv").read_text()
            waiting += re.findall(r"^ *(fv_\w+) ", text, re.MULTILINE)
    return texts | dict(sorted(own.items()))


def _others(proof: Proof) -> set[str]:
    """Further modules of the library that the harness names."""
    text = (RTL / f"prove_{proof.harness}.sv").read_text()
    return {path.stem for path in LIBRARY.glob("*.sv") if re.search(rf"\b{path.stem} #?\(?", text)}


def _abc(program: Path, engine: str, folder: Path) -> str:
    commands = f"read_aiger design.aig; fold; strash; {engine}"
    argv = [str(program), "-c", commands]
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True,
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"ABC took more than {_TIMEOUT_S} s", where=engine) from error
    return done.stdout + done.stderr
