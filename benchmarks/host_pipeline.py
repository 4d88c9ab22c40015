# SPDX-License-Identifier: Apache-2.0
"""A detector's host, one stage after another against all stages at once.

    python benchmarks/host_pipeline.py RUN --images FOLDER --write

RUN is a run directory of a detector as far as step ``lower``. Its real stages: read and decode an
image file and resize it as the run's ``input.json`` says; the integer graph, on one thread, by the
executor; the box of the output. Every frame's box must be the same and in the same order. A row is
the median of ``--rounds`` rounds, in which the ways to run take turns. ``bound`` is what no host
can beat: the sum of the stages' times by that of the slowest for its workers, and by the cores.
Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from results import command, keep, machine, table

from bitwright.data.detection_boxes import decode
from bitwright.data.preprocessing import read_input
from bitwright.host.images import image_files, read_image, to_levels
from bitwright.host.pipeline import HostStage, pipelined, sequential
from bitwright.ir import INTEGER, load_graph
from bitwright.ir.executor import Executor
from bitwright.pipeline.steps.names import step_folder

Run = Callable[[Sequence[Path], Sequence[HostStage]], Iterator[Any]]


def stages_of(run: Path, workers: Sequence[int]) -> list[HostStage]:
    """Fetch, infer, box: of a run's integer graph and its preprocessing."""
    folder = run / step_folder("lower")
    given = read_input(folder / "input.json")
    assert given is not None and given.preprocessing is not None, "a network that takes images"
    how = given.preprocessing
    graph = load_graph(folder / "graph.bwg", {INTEGER.name: INTEGER})
    (out,) = graph.outputs
    scale = np.array(graph.types[out].scale)
    executor = Executor(graph, threads=1)

    def fetch(path: Path) -> Any:
        return to_levels(read_image(path, how), how)[None]

    def infer(levels: Any) -> Any:
        return executor(levels)[out]

    def box(sums: Any) -> Any:
        return decode(np.moveaxis(sums * scale, -1, 1)).boxes[0]

    named = (("fetch", fetch), ("infer", infer), ("box", box))
    return [HostStage(name, work, n) for (name, work), n in zip(named, workers, strict=True)]


def timed(frames: Sequence[Path], stages: Sequence[HostStage], how: Run) -> tuple[float, Any]:
    """Seconds, and all boxes."""
    start = time.perf_counter()
    found = np.stack(list(how(frames, stages)))
    return time.perf_counter() - start, found


def alone(frames: Sequence[Path], stages: Sequence[HostStage]) -> dict[str, float]:
    """Milliseconds a frame of each stage, alone."""
    given: list[Any] = list(frames)
    times = {}
    for stage in stages:
        start = time.perf_counter()
        given = [stage.work(each) for each in given]
        times[stage.name] = (time.perf_counter() - start) / len(frames) * 1e3
    return times


def measure(args: argparse.Namespace) -> dict[str, Any]:
    files = image_files([args.images])
    frames = [files[n % len(files)] for n in range(args.frames)]
    cases = {f"{a} + {b} + {c} workers": (a, b, c) for a, b, c in args.workers}
    plain = stages_of(args.run, (1, 1, 1))
    alone(frames[:8], plain)
    parts = alone(frames, plain)
    built = {name: stages_of(args.run, workers) for name, workers in cases.items()}
    wanted = np.stack(list(sequential(frames, plain)))
    seconds: dict[str, list[float]] = {name: [] for name in ("sequential", *cases)}
    for _ in range(args.rounds):
        for name, each in seconds.items():
            how: Run = sequential if name == "sequential" else pipelined
            took, found = timed(frames, built.get(name, plain), how)
            assert np.array_equal(found, wanted), f"{name}: frames lost, changed or out of order"
            each.append(took)
    paths = {str(args.run): "RUN", str(args.images): "IMAGES"}

    def asked(word: str) -> str:
        return paths.get(word, word)

    total, cores = sum(parts.values()), len(os.sched_getaffinity(0))
    rows = {}
    for name, each in seconds.items():
        ratios = [a / b for a, b in zip(seconds["sequential"], each, strict=True)]
        workers = cases.get(name, (1, 1, 1))
        slowest = max(t / n for t, n in zip(parts.values(), workers, strict=True))
        bound = 1.0 if name == "sequential" else min(total / slowest, cores)
        rows[name] = {
            "frames a second": args.frames / statistics.median(each),
            "speed-up": statistics.median(ratios),
            "bound": bound,
        }
    return {
        "rows": rows,
        "stages_ms": parts,
        "frames": args.frames,
        "machine": machine("numpy"),
        "command": command({str(args.run): "RUN", str(args.images): "IMAGES"}),
    }


def page(found: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["stages_ms"].items())
    rows = [
        (name, f"{row['frames a second']:.1f}", f"{row['speed-up']:.2f}", f"{row['bound']:.2f}")
        for name, row in found["rows"].items()
    ]
    lines = [
        "# A host in stages",
        "",
        f"A detector's host over {found['frames']} image files: {parts} a frame, each alone. Boxes",
        "are equal and in order in every case. By `benchmarks/host_pipeline.py`, which says what",
        "the bound is.",
        "",
        *table(("stages", "frames a second", "speed-up", "bound"), rows),
        "",
        f"* `{found['command']}`; {found['machine']}",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--workers",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        nargs="+",
        default=[(1, 1, 1), (1, 2, 1), (2, 2, 1)],
        help="of fetch, infer and box: 1,2,1",
    )
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = measure(args)
    print(json.dumps(found, indent=1))
    if args.write:
        keep("host_pipeline", found, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
