# SPDX-License-Identifier: Apache-2.0
"""Images through the host library and the simulated board, on lines that lose and flip bytes.

    bitwright build digits --run-dir RUN
    python benchmarks/board.py RUN [--seeds 3]

The board's top (serial shell and design) runs in Verilator behind a pseudo terminal; the host is
the one that talks to real boards. Every value that comes back is compared with the integer graph.
Writes docs/results/board.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from networks import RESULTS, machine  # noqa: E402

from bitwright.build.simulated import Faults  # noqa: E402
from bitwright.pipeline.board import run_on_board  # noqa: E402
from bitwright.pipeline.board_subject import find_subject  # noqa: E402

SHARES = (0.0, 0.001, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    subject, rows = find_subject(args.run), []
    for share in SHARES:
        for seed in range(args.seeds if share else 1):
            faults = Faults(lost=share / 2, flipped=share / 2, seed=seed)
            start = time.perf_counter()
            found = run_on_board(subject, [], simulated=True, faults=faults)
            seconds = time.perf_counter() - start
            line, told = found.line, found.statistics
            assert line is not None
            carried = line.to_board[0] + line.from_board[0]
            rows.append([
                f"{share:.1%}", seed, len(found.names), found.compared, found.differences,
                f"{line.damaged} of {carried}", told.repeated_bytes, f"{seconds:.1f}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
    head = (
        "lost or flipped", "seed", "images", "values compared", "differences", "bytes hit",
        "bytes sent again", "seconds",
    )  # fmt: skip
    lines = [head, ["---"] * len(head), *rows]
    text = (
        "# Digits through the simulated board\n\n"
        f"`python benchmarks/board.py RUN --seeds {args.seeds}`, RUN from `bitwright build "
        f"digits`. {json.dumps(machine())}\n\n"
        + "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
        + f"\nLine: at most {found.line_rate:.0f} images a second at {found.baud} baud; core "
        f"{found.core_rate:.0f} images a second.\n"
    )
    (RESULTS / "board.md").write_text(text)


if __name__ == "__main__":
    main()
