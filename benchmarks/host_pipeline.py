# SPDX-License-Identifier: Apache-2.0
"""A detector's host, one stage after another against all stages at once.

    python benchmarks/host_pipeline.py RUN --images FOLDER --write

RUN is a run directory of a detector as far as step ``lower``. Its real stages: read and decode an
image file and resize it as the run's ``input.json`` says; the integer graph, on one thread, by the
executor; the box of the output. Every frame's box must be the same and in the same order. A row is
the median of ``--rounds`` rounds, in which the ways to run take turns. ``bound`` is what no host
can beat: a frame's time one after another by that of the slowest stage for its workers, and by the
cores.
Run it on a quiet machine.

``--device``: the network runs on the accelerator of the run's step ``map`` instead, which takes a
frame every so many cycles and gives its result after so many, at the rated clock: time in which the
host waits, or does what else there is to do. The integers, which are the same, are computed before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import command, keep, kept, machine, table

from bitwright.base.processors import available_threads
from bitwright.data.preprocessing import read_input
from bitwright.host.images import image_files, read_image, to_levels
from bitwright.host.pipeline import HostStage, pipelined, sequential
from bitwright.ir import INTEGER, load_graph
from bitwright.ir.executor import Executor
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.tasks.detection import Detection

Run = Callable[[Sequence[Path], Sequence[HostStage]], Iterator[Any]]


class Device:
    """An accelerator that is busy for a time and waited for: its integers are known before.

    Args:
        outputs: by the bytes of the levels that go in.
        interval_s: between two frames that it takes.
        latency_s: from the first value that goes in to the last that comes out.
    """

    def __init__(self, outputs: dict[bytes, Any], interval_s: float, latency_s: float) -> None:
        self.outputs, self.interval_s, self.latency_s = outputs, interval_s, latency_s
        self._free = 0.0
        self._turn = threading.Lock()

    def __call__(self, levels: Any) -> Any:
        with self._turn:
            begins = max(time.perf_counter(), self._free)
            self._free = begins + self.interval_s
        time.sleep(max(0.0, begins + self.latency_s - time.perf_counter()))
        return self.outputs[levels.tobytes()]


def device_of(run: Path, frames: Sequence[Path]) -> Device:
    """The accelerator of a run, with what it gives for these frames."""
    torch.set_num_threads(1)
    fetch, infer, _ = stages_of(run, (1, 1, 1))
    outputs: dict[bytes, Any] = {}
    for path in set(frames):
        levels = fetch.work(path)
        outputs[levels.tobytes()] = infer.work(levels)
    found = load_result(MapResult, run / step_folder("map"))
    hertz = found.rated_mhz * 1e6
    return Device(outputs, found.interval / hertz, found.latency / hertz)


def stages_of(run: Path, workers: Sequence[int], device: Device | None = None) -> list[HostStage]:
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

    recipe = load_recipe(run / "recipe.yaml", base_dir=run)
    detection = Workspace(recipe).task
    assert isinstance(detection, Detection), "a run of a detector"

    def box(sums: Any) -> Any:
        return detection.found(torch.from_numpy(np.moveaxis(sums * scale, -1, 1)))[0].boxes

    named = (("fetch", fetch), ("infer", device or infer), ("box", box))
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
    device = device_of(args.run, frames) if args.device else None
    plain = stages_of(args.run, (1, 1, 1), device)
    alone(frames[:8], plain)
    parts = alone(frames, plain)
    built = {name: stages_of(args.run, workers, device) for name, workers in cases.items()}
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

    total = statistics.median(seconds["sequential"]) / args.frames * 1e3  # what a frame took
    cores = available_threads()
    rows = {}
    for name, each in seconds.items():
        ratios = [a / b for a, b in zip(seconds["sequential"], each, strict=True)]
        workers = cases.get(name, (1, 1, 1))
        slowest = max(t / n for t, n in zip(parts.values(), workers, strict=True))
        busy = total  # of cores
        if device is not None:
            busy -= parts["infer"]
            slowest = max(
                parts["fetch"] / workers[0],
                parts["infer"] / workers[1],
                device.interval_s * 1e3,
                parts["box"] / workers[2],
            )
        bound = 1.0 if name == "sequential" else min(total / slowest, cores * total / busy)
        rows[name] = {
            "frames a second": args.frames / statistics.median(each),
            "speed-up": statistics.median(ratios),
            "bound": bound,
        }
    return {
        "rows": rows,
        "device": device is not None,
        "stages_ms": parts,
        "frames": args.frames,
        "machine": machine("numpy"),
        "command": command({str(args.run): "RUN", str(args.images): "IMAGES"}),
    }


def page(known: dict[str, Any]) -> str:
    lines = ["# A host in stages", ""]
    for found in known.values():
        parts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["stages_ms"].items())
        where = "its accelerator, waited for" if found["device"] else "the processor"
        rows = [
            (name, f"{row['frames a second']:.1f}", f"{row['speed-up']:.2f}", f"{row['bound']:.2f}")
            for name, row in found["rows"].items()
        ]
        lines += [
            f"A detector's host over {found['frames']} image files, the network on {where}:",
            f"{parts} a frame, each alone. Boxes are equal and in order in every case. By",
            "`benchmarks/host_pipeline.py`, which says what the bound is.",
            "",
            *table(("stages", "frames a second", "speed-up", "bound"), rows),
            "",
            f"* `{found['command']}`; {found['machine']}",
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


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
    parser.add_argument("--device", action="store_true", help="the accelerator of step map")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = measure(args)
    print(json.dumps(found, indent=1))
    if args.write:
        known = kept("host_pipeline") or {}
        known["device" if args.device else "processor"] = found
        keep("host_pipeline", known, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
