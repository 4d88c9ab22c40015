# SPDX-License-Identifier: Apache-2.0
"""The network of `examples/09_residual_network.py` from pictures to a routed design.

    python benchmarks/residual_network.py [--out DIR] [--clock MHZ]

Trains, lowers, folds by search alone for the stated rate, proves the RTL on all held-out pictures,
places and routes it for an ECP5-85; where the rate is missed at the clock that is reached, once
more for that clock. `--clock` begins with the clock that an earlier place and route has reached,
which saves the first of them. Writes docs/results/residual_network.md.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from networks import RESULTS, ROOT, machine  # noqa: E402

from bitwright import build_recipe  # noqa: E402
from bitwright.pipeline.recipe import recipe_from_dict  # noqa: E402

EXAMPLE = ROOT / "examples" / "09_residual_network.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/residual"))
    parser.add_argument("--clock", type=float, default=None)
    args = parser.parse_args()
    lesson = runpy.run_path(str(EXAMPLE))
    pictures = args.out.parent / "pictures"
    lesson["draw"](pictures)
    fields = lesson["recipe"](pictures.resolve(), rate_clock_mhz=args.clock)
    fields |= {"implement": {"timeout_s": 7200.0}}
    recipe = recipe_from_dict(fields, base_dir=EXAMPLE.parent)
    summary = build_recipe(recipe, args.out)
    rows = [(row.label, row.figure, row.note) for row in summary.rows if row.figure is not None]
    began = "" if args.clock is None else f" --clock {args.clock:g}"
    text = (
        "# A network with three residual additions on an ECP5-85\n\n"
        f"`examples/09_residual_network.py`, at least {lesson['RATE']} images a second asked, "
        f"folded by search alone; `python benchmarks/residual_network.py{began}`. "
        f"{json.dumps(machine())}\n\n| what | figure | |\n|---|---|---|\n"
        + "".join(f"| {label} | {value} | {note} |\n" for label, value, note in rows)
    )
    (RESULTS / "residual_network.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
