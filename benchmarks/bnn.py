# SPDX-License-Identifier: Apache-2.0
"""Accuracy and training time of the document's binarized networks, its tricks and its sizes.

    python benchmarks/bnn.py search --data DIR --presets ann-1h --widths 512 \\
        --rates 1e-3:1e-5 3e-3:3e-5 --set scale_error=fan_in     # on held-out training images
    python benchmarks/bnn.py accuracy --data DIR           # four presets, three seeds
    python benchmarks/bnn.py accuracy --data DIR --presets bnn-1h --seeds 0 --cycles 60000
    python benchmarks/bnn.py accuracy --data DIR --presets ann-1h --cycles 600000 \\
        --set sizes=784-512-10 drop_input=0.2 rate_start=1.2e-3 rate_end=1.2e-5
    python benchmarks/bnn.py tricks --data DIR             # each trick changed alone
    python benchmarks/bnn.py sizes --data DIR              # 256 .. 4096 units, one and two layers
    python benchmarks/bnn.py report                        # the page alone

Every course is added to docs/results/bnn.json when it has ended, and not run again while it stands
there; docs/results/bnn.md is the page. Figures are of MNIST's 10 000 test images, those of `search`
of a sixth of the training images, which are then not trained on: rates are chosen there, and
a preset is measured on the test images once, behind its last sample. Minutes are those of the
processor, which the other work of a machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bitwright.base.figures import Measured
from bitwright.papers.bnn_soc.course import PRESETS, TRICKS, Samples, load_samples, run_course
from bitwright.papers.bnn_soc.settings import Settings, parse_changes
from bitwright.papers.bnn_soc.soc import published
from bitwright.papers.bnn_soc.tables import rule_of_thumb
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.report.table import Column, Kind, Table

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "bnn.json"
SIZES = (256, 512, 1024, 2048, 4096)
_GOALS = {"ann-1h": 0.97, "ann-2h": 0.98, "bnn-1h": 0.87, "bnn-2h": 0.92}
KINDS = ("search", "accuracy", "tricks", "sizes")
HELD_OUT = 1 / 6  # of the 60 000: as many as there are test images


def stored() -> dict[str, Any]:
    """What has been measured."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {kind: found.get(kind, []) for kind in KINDS}


def course(
    kind: str, name: str, settings: Settings, samples: Samples, args: argparse.Namespace
) -> None:
    """Train once, unless it has been done, and note it."""
    key = {"name": name, "seed": settings.seed, "cycles": args.cycles, "settings": asdict(settings)}
    key = json.loads(json.dumps(key))
    for row in stored()[kind]:  # a row from before an option was there had its default
        done = {
            **row,
            "settings": {**json.loads(json.dumps(asdict(Settings()))), **row["settings"]},
        }
        if all(done[k] == v for k, v in key.items()):
            return
    began = time.process_time()
    _, looks = run_course(
        settings, samples, cycles=args.cycles, looks=args.looks, threads=args.threads,
        seen=lambda look: print(kind, name, settings.seed, look, flush=True),
    )  # fmt: skip
    row = {
        **key,
        "looks": [asdict(look) for look in looks],
        "threads": args.threads,
        "load": os.getloadavg()[0],
        "cpu_minutes": (time.process_time() - began) / 60,
        "numpy": np.__version__,
        "python": platform.python_version(),
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


def search(samples: Samples, args: argparse.Namespace) -> None:
    """Each pair of rates on images that are held out, at each width; named by what is changed."""
    for preset in args.presets:
        for width in args.widths:
            for pair in args.rates or ["preset"]:
                base = PRESETS[preset]
                base = base.changed(sizes=(784, *[width] * (base.layers - 1), 10))
                texts = list(args.set)
                if pair != "preset":
                    texts += [
                        f"rate_{k}={v}"
                        for k, v in zip(("start", "end"), pair.split(":"), strict=True)
                    ]
                name = " ".join((preset, *args.set))
                course(
                    "search",
                    name,
                    parse_changes(base, texts).changed(seed=args.seeds[0]),
                    samples,
                    args,
                )


def page(found: dict[str, Any]) -> str:
    """All tables."""
    parts = [
        "# Binarized networks, sample by sample\n",
        "Made by `python benchmarks/bnn.py`; its head says how. MNIST, 10 000 test images.\n",
        _accuracy(found["accuracy"]).to_markdown(),
        _searched(found["search"]).to_markdown(),
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
        Column("minutes", "training and test", Kind.NUMBER, "processor min", 1),
        Column("wall", "training of 60 000", Kind.NUMBER, "min", 1),
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
                "goal": _GOALS.get(name.split()[0]),
                "minutes": max(row["cpu_minutes"] for row in group),
                "wall": min(look["seconds"] / look["cycles"] for look in last) * 1000,
                "load": max(row["load"] for row in group),
            }
        )
    made_on = sorted(
        {
            f"{row['cpu']}, {row['threads']} thread, Python {row['python']}, numpy {row['numpy']}"
            for row in rows
        }
    )
    notes = (
        f"The document: {json.dumps(published()['accuracy'])} percent.",
        *(
            f"`python benchmarks/bnn.py accuracy --data DIR`, with `--cycles` and `--set` as a row "
            f"names them, on {place}."
            for place in made_on
        ),
    )
    return Table("Accuracy", columns, tuple(shown), notes)


def _changed(row: dict[str, Any]) -> str:
    """A preset's name, and what its trainer does otherwise than the document's."""
    name = row["name"].split()[0]
    plain = asdict(PRESETS[name].changed(scale_error="none", present=0))
    settings = {**asdict(Settings()), **row["settings"]}
    skipped = {"sizes", "rate_start", "rate_end", "seed"}
    also = [f"{k}={v}" for k, v in settings.items() if k not in skipped and v != plain[k]]
    return " ".join((name, *also))


def _searched(rows: list[dict[str, Any]]) -> Table:
    columns = (
        Column("name", "network, and what is changed"),
        Column("sizes", "sizes"),
        Column("cycles", "samples", Kind.NUMBER, digits=0),
        Column("rates", "rate, first to last"),
        Column("argmax", "largest sum right", Kind.SHARE),
        Column("strict", "all outputs right", Kind.SHARE),
    )
    shown = []
    for row in sorted(
        rows, key=lambda row: (_changed(row), row["settings"]["sizes"], row["cycles"])
    ):
        s, last = row["settings"], row["looks"][-1]
        shown.append({
            "name": row["name"], "sizes": "-".join(map(str, s["sizes"])), "cycles": row["cycles"],
            "rates": f"{s['rate_start']:.3g} to {s['rate_end']:.3g}",
            "argmax": last["argmax"], "strict": last["strict"],
        })  # fmt: skip
    notes = ("A sixth of the training images, not trained on; one seed each.",)
    return Table("Rates, chosen on held-out training images", columns, tuple(shown), notes)


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
    parser.add_argument("what", choices=(*KINDS, "report"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--presets", nargs="+", default=list(_GOALS))
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], help="search takes the first alone"
    )
    parser.add_argument("--cycles", type=int, default=60_000)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--widths", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--rates", nargs="+", help="of search: FIRST:LAST")
    parser.add_argument("--set", nargs="+", default=[], help="of search and accuracy: KEY=VALUE")
    args = parser.parse_args()
    if args.what == "report":
        RESULTS.with_suffix(".md").write_text(page(stored()))
        return
    samples = load_samples(args.data, held_out=HELD_OUT if args.what == "search" else 0.0)
    if args.what == "search":
        search(samples, args)
    elif args.what == "accuracy":
        for preset in args.presets:
            changed = parse_changes(PRESETS[preset], args.set)
            for seed in args.seeds:
                name = " ".join((preset, *args.set))
                course("accuracy", name, changed.changed(seed=seed), samples, args)
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
