# SPDX-License-Identifier: Apache-2.0
"""Accuracy and training time of the document's binarized networks, its tricks and its sizes.

    python benchmarks/bnn.py accuracy --data DIR           # four presets, three seeds
    python benchmarks/bnn.py accuracy --data DIR --presets bnn-1h --seeds 0 --cycles 60000
    python benchmarks/bnn.py tricks --data DIR             # each trick changed alone
    python benchmarks/bnn.py sizes --data DIR              # 256 .. 4096 units, one and two layers
    python benchmarks/bnn.py report                        # the page alone

Every course is added to docs/results/bnn.json when it has ended, and not run again while it stands
there; docs/results/bnn.md is the page. Figures are of MNIST's 10 000 test images. Seconds are of
training alone; on a machine that does other things they say little, and the load is beside them.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bitwright.base.figures import Measured
from bitwright.papers.bnn_soc.course import PRESETS, TRICKS, Samples, load_samples, run_course
from bitwright.papers.bnn_soc.settings import Settings
from bitwright.papers.bnn_soc.soc import published
from bitwright.papers.bnn_soc.tables import rule_of_thumb
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.report.table import Column, Kind, Table

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "bnn.json"
SIZES = (256, 512, 1024, 2048, 4096)
_GOALS = {"ann-1h": 0.97, "ann-2h": 0.98, "bnn-1h": 0.87, "bnn-2h": 0.92}
_EMPTY: dict[str, Any] = {"accuracy": [], "tricks": [], "sizes": []}


def stored() -> dict[str, Any]:
    """What has been measured."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else dict(_EMPTY)


def course(
    kind: str, name: str, settings: Settings, samples: Samples, args: argparse.Namespace
) -> None:
    """Train once, unless it has been done, and note it."""
    key = {"name": name, "seed": settings.seed, "cycles": args.cycles, "settings": asdict(settings)}
    key = json.loads(json.dumps(key))
    if any(all(row[k] == v for k, v in key.items()) for row in stored()[kind]):
        return
    _, looks = run_course(
        settings, samples, cycles=args.cycles, looks=args.looks, threads=args.threads,
        seen=lambda look: print(kind, name, settings.seed, look, flush=True),
    )  # fmt: skip
    row = {
        **key,
        "looks": [asdict(look) for look in looks],
        "threads": args.threads,
        "load": os.getloadavg()[0],
        "cpu": cpu_name(),
    }
    found = stored()  # again: others may have written meanwhile
    found[kind].append(row)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(found))


def sizes_of(width: int, depth: int) -> Settings:
    """The binarized preset with so many units in every hidden layer."""
    base = PRESETS[f"bnn-{depth}h"]
    return base.changed(sizes=(784, *[width] * depth, 10))


def page(found: dict[str, Any]) -> str:
    """All tables."""
    parts = [
        "# Binarized networks, sample by sample\n",
        "Made by `python benchmarks/bnn.py`; its head says how. MNIST, 10 000 test images.\n",
        _accuracy(found["accuracy"]).to_markdown(),
        _last("Tricks, each changed alone", found["tricks"]).to_markdown(),
        _last(
            f"Sizes; the rule of thumb says {rule_of_thumb(784, 10):.0f} units", found["sizes"]
        ).to_markdown(),
    ]
    return "\n".join(parts)


def _mean(values: list[float]) -> float | Measured:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean
    spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return Measured(mean, spread)


def _accuracy(rows: list[dict[str, Any]]) -> Table:
    columns = (
        Column("name", "network"),
        Column("cycles", "samples", Kind.NUMBER, digits=0),
        Column("seeds", "seeds", Kind.NUMBER, digits=0),
        Column("argmax", "largest sum right", Kind.SHARE),
        Column("strict", "all outputs right", Kind.SHARE),
        Column("goal", "document", Kind.SHARE, digits=0),
        Column("minutes", "training of 60 000", Kind.NUMBER, "min"),
        Column("load", "load", Kind.NUMBER, digits=1, about="processes that wanted two cores"),
    )
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["name"], row["cycles"]), []).append(row)
    shown = []
    for (name, cycles), group in sorted(groups.items()):
        last = [row["looks"][-1] for row in group]
        shown.append(
            {
                "name": name,
                "cycles": cycles,
                "seeds": len(group),
                "argmax": _mean([look["argmax"] for look in last]),
                "strict": _mean([look["strict"] for look in last]),
                "goal": _GOALS.get(name),
                "minutes": min(look["seconds"] / look["cycles"] for look in last) * 1000,
                "load": max(row["load"] for row in group),
            }
        )
    notes = (f"The document: {json.dumps(published()['accuracy'])} percent.",)
    return Table("Accuracy", columns, tuple(shown), notes)


def _last(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = (
        Column("name", "trained with"),
        Column("cycles", "samples", Kind.NUMBER, digits=0),
        Column("half", "largest sum right, half way", Kind.SHARE),
        Column("argmax", "at the end", Kind.SHARE),
        Column("strict", "all outputs right", Kind.SHARE),
    )
    shown = []
    for row in rows:
        looks = row["looks"]
        last, middle = looks[-1], looks[(len(looks) - 1) // 2]
        cells = {"name": row["name"], "cycles": row["cycles"], "half": middle["argmax"]}
        shown.append({**cells, "argmax": last["argmax"], "strict": last["strict"]})
    return Table(title, columns, tuple(shown))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("accuracy", "tricks", "sizes", "report"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--presets", nargs="+", default=list(_GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--cycles", type=int, default=60_000)
    parser.add_argument("--looks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--widths", nargs="+", type=int, default=list(SIZES))
    args = parser.parse_args()
    if args.what == "report":
        RESULTS.with_suffix(".md").write_text(page(stored()))
        return
    samples = load_samples(args.data)
    if args.what == "accuracy":
        for preset in args.presets:
            for seed in args.seeds:
                course("accuracy", preset, PRESETS[preset].changed(seed=seed), samples, args)
    elif args.what == "tricks":
        for name, change in TRICKS.items():
            base = sizes_of(args.widths[0], 1) if len(args.widths) == 1 else PRESETS["bnn-1h"]
            course("tricks", name, base.changed(**change), samples, args)
    else:
        for depth in (1, 2):
            for width in args.widths:
                name = "-".join(map(str, sizes_of(width, depth).sizes))
                course("sizes", name, sizes_of(width, depth), samples, args)


if __name__ == "__main__":
    main()
