# SPDX-License-Identifier: Apache-2.0
"""Speed of this checkout against another one: the same jobs in two processes, in turn.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before --name COMMIT       # writes docs/results/versions.*
    python benchmarks/versions.py ../before --only executor --pairs 5 --no-write

Each checkout has a process of its own, which takes the jobs from that checkout's own benchmarks
(`qat_step`, `executor`, `train_step`, `quantize`) and its package. One of them works at a time:
before, now, before, now, ..., so that whatever else the machine does meets both. The same code is
several percent faster in one process than in the next (where its memory happens to lie), so every
job runs in several pairs of processes. A ratio is now over before, as the median of all paired
rounds, with the lowest and the highest median of a pair of processes; below 1 this checkout is
faster. Jobs that do not run our code (float32) show how much such a ratio strays by itself. One
thread; time of the processor, not of the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
Jobs = Iterator[tuple[str, Callable[[], object]]]
_QUICK_S = 0.1


def qat_step(net: str) -> Jobs:
    """Training step and evaluation, quantized and float."""
    import qat_step as bench
    import torch

    torch.manual_seed(1)
    images, labels = torch.rand(32, 3, 32, 32), torch.randint(0, 10, (32,))
    policy = bench.Policy.uniform(weight="int4", activation="uint4", input="uint8")
    plain = bench.MODELS[net]()
    ours = bench.apply(plain, policy, "train")
    yield "float32, step", bench.step_of(plain, images, labels)
    yield "quantized, step", bench.step_of(ours, images, labels)
    yield "float32, evaluation", bench.evaluation_of(plain, images)
    yield "quantized, evaluation", bench.evaluation_of(ours, images)


def executor(net: str) -> Jobs:
    """The integer executor on one image and on a batch."""
    import executor as bench
    import numpy as np

    name, weights, activations = bench.NETS[net]
    graph = bench.BUILDERS[name](weights, activations)
    batches = bench.BATCHES[name]
    shape = (max(batches), *graph.types["x"].shape)
    images = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    for batch in batches:
        run, part = bench.Executor(graph, threads=1, backend="native"), images[:batch].copy()
        yield f"batch {batch}", partial(run, part)


def train_step(net: str) -> Jobs:
    """A training step in 8 bits."""
    import copy

    import train_step as bench

    model, images, labels = bench.example(net, 32)
    for name in ("float32", "emulated, norms", "integer, norms"):
        yield name, bench.step_of(copy.deepcopy(model), bench.ARMS[name], images, labels)


def quantize(rounding: str) -> Jobs:
    """Every format on a million values."""
    import quantize as bench
    import torch

    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    for row in bench.rows(values.numel()):
        if str(row.rounding) == rounding:
            yield row.name, partial(row.ours, values)


CASES: dict[str, tuple[Callable[[str], Jobs], tuple[str, ...]]] = {
    "qat_step": (qat_step, ("cnv", "resnet18", "densenet")),
    "executor": (
        executor,
        ("tfc-w2a2", "tfc-w1a1", "cnv-w2a2", "cnv-w1a1", "cnv-w4a4", "skynet-w4a4"),
    ),
    "train_step": (train_step, ("resnet20", "alexnet")),
    "quantize": (quantize, ("half_even", "stochastic")),
}


def serve() -> None:
    """What a process does: sets up the jobs of a case, then runs the one that is asked for."""
    import torch

    torch.set_num_threads(1)
    jobs: list[Callable[[], object]] = []
    counts: list[int] = []
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a job prints is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            named = list(CASES[asked[0]][0](asked[1]))
            jobs = [job for _, job in named]
            for job in jobs:
                job()
            taken = [spent(job, 1) for job in jobs]
            counts = [max(1, round(_QUICK_S / each)) for each in taken]
            answer: Any = [name for name, _ in named]
        else:
            answer = spent(jobs[asked], counts[asked]) / counts[asked]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def spent(job: Callable[[], object], count: int) -> float:
    """Processor seconds of so many calls."""
    start = time.process_time()
    for _ in range(count):
        job()
    return time.process_time() - start


class Checkout:
    """A process that works with the code of one checkout."""

    def __init__(self, root: Path) -> None:
        paths = os.pathsep.join([str(root / "src"), str(root / "benchmarks")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=environment,
        )

    def ask(self, question: object) -> Any:
        """Its answer to a case (names of its jobs) or to the number of a job (seconds)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process ended: its error stands above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def compare(case: str, part: str, before: Path, pairs: int, rounds: int) -> list[dict[str, Any]]:
    """All jobs of one part of a case: in each pair of processes, each round of both in turn."""
    jobs: list[str] = []
    times: dict[str, list[list[tuple[float, float]]]] = {}
    for _ in range(pairs):
        both = Checkout(before), Checkout(ROOT)
        jobs, ours = (checkout.ask([case, part]) for checkout in both)
        if jobs != ours:
            raise SystemExit(f"{case} {part}: the checkouts have other jobs: {jobs}, {ours}")
        for index, job in enumerate(jobs):
            taken = [(both[0].ask(index) * 1e3, both[1].ask(index) * 1e3) for _ in range(rounds)]
            times.setdefault(job, []).append(taken)
        for checkout in both:
            checkout.close()
    rows = []
    for job in jobs:
        medians = [statistics.median(b / a for a, b in pair) for pair in times[job]]
        taken = [each for pair in times[job] for each in pair]
        rows.append(
            {
                "case": case,
                "part": part,
                "job": job,
                "before_ms": min(a for a, _ in taken),
                "now_ms": min(b for _, b in taken),
                "ratio": statistics.median(b / a for a, b in taken),
                "lowest": min(medians),
                "highest": max(medians),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| benchmark | of | job | before, ms | now, ms | now / before | by processes |"]
    lines.append("|---" * 7 + "|")
    lines += [
        f"| {r['case']} | {r['part']} | {r['job']} | {r['before_ms']:.3f} | {r['now_ms']:.3f} "
        f"| {r['ratio']:.2f} | {r['lowest']:.2f} to {r['highest']:.2f} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?", help="root of the other checkout")
    parser.add_argument("--name", default="the other checkout", help="what to call it on the page")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each pair")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    if given.before is None or not (given.before / "src" / "bitwright").is_dir():
        parser.error(f"{given.before} is no checkout of Bitwright: it has no src/bitwright")
    rows = []
    for case in given.only:
        for part in CASES[case][1]:
            rows += compare(case, part, given.before.resolve(), given.pairs, given.rounds)
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if given.no_write:
        return
    import torch
    from qat_step import machine

    torch.set_num_threads(1)  # as the processes have it
    command = " ".join(["python benchmarks/versions.py", *sys.argv[1:]])
    record = {"command": command, "machine": machine(), "load_average": os.getloadavg()[0]}
    text = (
        json.dumps({**record, "pairs": given.pairs, "rounds": given.rounds, "rows": rows}, indent=1)
        + "\n"
    )
    (RESULTS / "versions.json").write_text(text)
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    (RESULTS / "versions.md").write_text(
        f"# Speed against {given.name}\n\n`{command}` on {facts}; {given.pairs} pairs of "
        f"processes, {given.rounds} rounds in each, load {os.getloadavg()[0]:.1f}.\n\nBoth "
        "checkouts' own benchmark code, one process each, in turn, one thread, processor time. "
        "Times: of the fastest round. Ratios: the median of all paired rounds, and the lowest and "
        "highest median of a pair of processes; below 1 the code is faster now. Rows of float32 "
        "run nothing of ours: what they stray by is noise."
        f"\n\n{table(rows)}\n"
    )


if __name__ == "__main__":
    main()
