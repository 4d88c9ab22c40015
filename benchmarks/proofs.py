# SPDX-License-Identifier: Apache-2.0
"""Which module of the hardware library is proved, at which parameters, how far, and in which time.

    python benchmarks/proofs.py

Does every proof of tests/formal/cases.py and writes docs/results/proofs.md. Times are those of a
processor, for Yosys and ABC; of proofs that were kept from before, those of then.
"""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.formal.cases import FAULTS, PROOFS  # noqa: E402
from tests.formal.prove import prove  # noqa: E402

from bitwright.base.tools.finder import require  # noqa: E402
from bitwright.pipeline.steps.baseline import cpu_name  # noqa: E402


def main() -> None:
    rows = []
    for proof in PROOFS:
        verdict = prove(proof)
        if not verdict.proved:
            raise SystemExit(f"{proof.name}: {verdict.said}")
        point = ", ".join(f"{key} {value}" for key, value in proof.parameters.items()) or "-"
        how = f"{proof.depth} cycles" if proof.depth else "unbounded"
        rows.append(f"| `{proof.module}` | {point} | {how} | {verdict.seconds:.1f} |")
        print(rows[-1], flush=True)
    text = f"""# Proofs of the hardware library

What the words mean is on [the page of proofs](../proofs.md). Made by
`python benchmarks/proofs.py` on {date.today()}, {cpu_name()}, {require("yosys").identity};
seconds of one processor. {len(FAULTS)} faults are found by these proofs.

| module | parameters of the harness | proved | s |
|---|---|---|---|
"""
    (ROOT / "docs" / "results" / "proofs.md").write_text(text + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
