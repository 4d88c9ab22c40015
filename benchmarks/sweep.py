# SPDX-License-Identifier: Apache-2.0
"""One worker against two, by processes and on a local Ray cluster: the same small trainings.

    python benchmarks/sweep.py [--points 6] [--epochs 60] [--out docs/results/sweep]
    python benchmarks/sweep.py --epochs 6 --out docs/results/sweep_small

The first ways fork each point from a process that has imported torch; the others, and Ray, start a
new process for each.

Every point trains the float network of `digits` on one thread, each with another seed, so that they
share nothing. For each way it prints

* ``wall``: seconds from the call to the last result, with all that starting workers takes (and the
  Ray cluster, where there is one); ``start`` is how much of it went by before the first point;
* ``at once``: points at work at a time on average, from the first start to the last end;
* ``CPU a point``: processor seconds of a point, which grow when two compete for memory;
* ``speed-up``: wall with one process over wall. Right on a quiet machine only;
* ``by processor``: at once, times CPU a point with one process, over CPU a point. What the speed-up
  is where nothing else runs; other load on the machine changes it little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.processors import available_threads
from bitwright.explore.changes import with_seed
from bitwright.jobs import JobResult, run_jobs, runner
from bitwright.jobs.forks import AVAILABLE
from bitwright.jobs.job import Job
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name

#: Name, workers, Ray, whether points are forked.
WAYS = (
    ("1 process", 1, None, True),
    ("2 processes", 2, None, True),
    ("1 process, new ones", 1, None, False),
    ("2 processes, new ones", 2, None, False),
    ("Ray, 1 worker", 1, "local", False),
    ("Ray, 2 workers", 2, "local", False),
)


@dataclass(frozen=True)
class Measured:
    """One way to run all points; seconds."""

    name: str
    wall: float
    start: float
    at_once: float
    cpu: float


def measure(way: tuple[str, int, str | None, bool], points: int, epochs: int) -> Measured:
    """Run all points in an empty folder."""
    name, workers, ray, forked = way
    runner.AVAILABLE = forked and AVAILABLE
    with tempfile.TemporaryDirectory(prefix="bitwright-sweep-") as folder:
        jobs = jobs_of(Path(folder), points, epochs)
        begin = time.monotonic()
        ends: list[tuple[float, JobResult]] = []
        run_jobs(
            jobs,
            workers=workers,
            threads=1,
            ray=ray,
            on_result=lambda result: ends.append((time.monotonic() - begin, result)),
        )
        wall = time.monotonic() - begin
    failed = [result for _, result in ends if result.failure is not None]
    if failed:
        raise SystemExit(f"{failed[0].name}: {failed[0].failure}")
    start = min(end - result.seconds for end, result in ends)
    busy = sum(result.seconds for _, result in ends)
    cpu = sum(result.cpu_seconds for _, result in ends) / points
    return Measured(name, wall, start, busy / (max(end for end, _ in ends) - start), cpu)


def jobs_of(folder: Path, points: int, epochs: int) -> list[Job]:
    recipe = load_recipe("digits", [f"train.float.epochs={epochs}", "train.pretrained=false"])
    return [
        Job(
            f"seed {seed}",
            "bitwright.explore.sweep:run_point",
            {
                "recipe": with_seed(recipe, seed).resolved(),
                "base_dir": str(folder),
                "until": "train",
            },
            folder / f"seed-{seed}",
        )
        for seed in range(points)
    ]


def main() -> None:
    """Measure every way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, help="writes OUT.md and OUT.json")
    options = parser.parse_args()
    rows: list[Measured] = []
    load = os.getloadavg()[0]  # of others, before
    lines = [
        "| way | wall s | start s | at once | CPU s a point | speed-up | by processor |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for way in WAYS:
        rows.append(measure(way, options.points, options.epochs))
        lines.append(line_of(rows[-1], rows[0]))
        print(lines[-1], flush=True)
    about = f"{options.points} points of {options.epochs} epochs; {cpu_name()}"
    about += f", {available_threads()} cores"
    about += f", Python {platform.python_version()}, load average before: {load:.1f}"
    print(f"\n{about}")
    if options.out is not None:
        record = {"about": about, "ways": [vars(row) for row in rows]}
        options.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        words = (__doc__ or "").partition("\n")[2].strip()
        page = ["# One worker against two", "", words, "", *lines, "", about]
        options.out.with_suffix(".md").write_text("\n".join(page) + "\n")


def line_of(found: Measured, one: Measured) -> str:
    """A row of the table; ``one`` is the way with one process."""
    bound = found.at_once / one.at_once * one.cpu / found.cpu
    return (
        f"| {found.name} | {found.wall:.1f} | {found.start:.1f} | {found.at_once:.2f} "
        f"| {found.cpu:.1f} | {one.wall / found.wall:.2f} | {bound:.2f} |"
    )


if __name__ == "__main__":
    main()
