# SPDX-License-Identifier: Apache-2.0
"""Images per second of the integer executor, against ONNX Runtime and QONNX's executor.

    python benchmarks/executor.py                       # the table, and docs/results/executor.*
    python benchmarks/executor.py --nets cnv-w2a2 --rounds 3 --no-write

All contenders of a network run in one process, alternately, with the same number of threads; a
pause between them lets the spinning threads of the last one sleep. Each figure is the median over
the rounds; the ratio to ONNX Runtime int8 is the median of the rounds' ratios. The 8-bit peer is
the fastest, per batch size, of eight static quantizations (QDQ or QOperator, unsigned or signed
activations, per tensor or per channel). Before timing, our outputs must equal the reference
interpreter's on some images, and those of the numpy backend on all.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from executor_nets import cnv, float_onnx, int8_onnx, skynet, tfc

from bitwright.base.processors import available_threads
from bitwright.ir import Graph
from bitwright.ir.executor import Executor, native_status
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
NETS = {
    "tfc-w2a2": ("tfc", "int2", "uint2"),
    "tfc-w1a1": ("tfc", "bipolar", "bipolar"),
    "cnv-w2a2": ("cnv", "int2", "uint2"),
    "cnv-w1a1": ("cnv", "bipolar", "bipolar"),
    "cnv-w4a4": ("cnv", "int4", "uint4"),
    "skynet-w4a4": ("skynet", "int4", "uint4"),
}
BUILDERS = {"cnv": cnv, "tfc": tfc, "skynet": skynet}
BATCHES = {"cnv": (1, 100), "tfc": (1, 100), "skynet": (1, 4)}
OURS, NUMPY = "bitwright", "bitwright, numpy backend"
INT8, FLOAT32, QONNX = "ONNX Runtime int8", "ONNX Runtime float32", "QONNX"
_SLOT_S = 0.25
_PAUSE_S = 0.05
_CHECKED_IMAGES = 4


@dataclass
class Contender:
    """Something that is timed.

    Attributes:
        run: executes one batch of the network's images.
        setting: which of its settings this is.
        rates: images per second of each round.
    """

    name: str
    batch: int
    run: Callable[[], object]
    setting: str = ""
    rates: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> float:
        """Images per second over at least one call and about ``seconds``."""
        if not self.rates:
            self.run()
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds or calls == 0:
            self.run()
            calls += 1
        return calls * self.batch / spent


def ours(
    graph: Graph, threads: int, images: np.ndarray, batches: tuple[int, ...]
) -> list[Contender]:
    """Native and numpy executor."""
    found = []
    native = Executor(graph, threads=threads, backend="native")
    fallback = Executor(graph, backend="numpy")
    kernels = ", ".join(sorted(set(native.kernels.values())))
    for batch in batches:
        part = np.ascontiguousarray(images[:batch])
        found.append(Contender(OURS, batch, lambda x=part: native(x), kernels))
        found.append(Contender(NUMPY, batch, lambda x=part: fallback(x)))
    return found


def check(graph: Graph, threads: int, images: np.ndarray) -> int:
    """Compare with the interpreter and between backends; returns the number of images compared."""
    few = {"x": images[:_CHECKED_IMAGES]}
    expected = graph.run(few)
    native, fallback = Executor(graph, threads=threads), Executor(graph, backend="numpy")
    for executor in (native, fallback):
        got = executor.run(few)
        if any(not np.array_equal(got[edge], expected[edge]) for edge in expected):
            sys.exit(f"{graph.name}: {executor.backend} differs from the interpreter")
    one, other = native(images), fallback(images)
    if any(not np.array_equal(one[edge], other[edge]) for edge in one):
        sys.exit(f"{graph.name}: the backends differ")
    return len(images)


def _session(path: Path, threads: int) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnxruntime_peers(name: str, threads: int, folder: Path) -> list[Contender]:
    """Float32, and the fastest of the 8-bit variants for each batch size."""
    source = folder / f"{name}.onnx"
    shape = float_onnx(name, source)
    batches = BATCHES[name]
    images = np.random.default_rng(2).random((max(batches), *shape), dtype=np.float32)
    found = []
    for batch in batches:
        part = images[:batch]
        plain = _session(source, threads)
        found.append(Contender(FLOAT32, batch, lambda s=plain, x=part: s.run(None, {"x": x})))
    sessions = {p.stem: _session(p, threads) for p in int8_onnx(source, shape, folder)}
    for batch in batches:
        variants = []
        for stem, session in sessions.items():
            run = lambda s=session, x=images[:batch]: s.run(None, {"x": x})  # noqa: E731
            variants.append(Contender(INT8, batch, run, stem.removeprefix(f"{name}-")))
        rates: dict[str, float] = {}
        for _ in range(3):
            for variant in variants:
                rate = variant.measure(_SLOT_S / 4)
                rates[variant.setting] = max(rate, rates.get(variant.setting, 0.0))
        found.append(max(variants, key=lambda v: rates[v.setting]))
    return found


def qonnx_peer(graph: Graph, images: np.ndarray, batches: tuple[int, ...]) -> list[Contender]:
    """QONNX's executor on the exported graph; few images, because it is slow."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    from bitwright.interop.onnx.export_qonnx import qonnx_model, to_nchw

    found = []
    for batch in batches:
        model = ModelWrapper(qonnx_model(graph, batch=batch))
        feeds = {"x": to_nchw(images[:batch].astype(np.int64)).astype(np.float32)}
        found.append(Contender(QONNX, batch, lambda m=model, f=feeds: execute_onnx(m, f)))
    return found


def race(contenders: list[Contender], rounds: int) -> None:
    """Let all run alternately; a slow one (QONNX) runs in the first rounds only."""
    for index in range(rounds):
        for contender in contenders:
            if contender.name == QONNX and index >= 2:
                continue
            time.sleep(_PAUSE_S)
            contender.rates.append(contender.measure(0.0 if contender.name == QONNX else _SLOT_S))


def ratio(ours_: Contender, peer: Contender) -> float:
    """Median over the rounds of our rate by the peer's."""
    pairs = zip(ours_.rates, peer.rates, strict=False)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def bench(net: str, threads: int, rounds: int, with_qonnx: bool) -> list[dict[str, Any]]:
    """All rows of one network."""
    name, weights, activations = NETS[net]
    graph = BUILDERS[name](weights, activations)
    shape = graph.types["x"].shape
    batches = BATCHES[name]
    images = np.random.default_rng(3).integers(0, 256, (max(batches), *shape), dtype=np.uint8)
    compared = check(graph, threads, images)
    with tempfile.TemporaryDirectory() as folder:
        contenders = ours(graph, threads, images, batches)
        contenders += onnxruntime_peers(name, threads, Path(folder))
        if with_qonnx:
            contenders += qonnx_peer(graph, images, batches if name == "tfc" else (1,))
        race(contenders, rounds)
    peers = {c.batch: c for c in contenders if c.name == INT8}
    return [
        {
            "net": net,
            "contender": c.name,
            "setting": c.setting,
            "batch": c.batch,
            "images_per_s": round(statistics.median(c.rates), 1),
            "best_images_per_s": round(max(c.rates), 1),
            "times_int8": round(ratio(c, peers[c.batch]), 2),
            "rounds": len(c.rates),
            "exact_images": compared if c.name in (OURS, NUMPY) else None,
        }
        for c in contenders
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| network | what | batch | images/s (median) | best round | x ONNX Runtime int8 |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        what = row["contender"] + (f" ({row['setting']})" if row["setting"] else "")
        lines.append(
            f"| {row['net']} | {what} | {row['batch']} | {row['images_per_s']:,.0f} | "
            f"{row['best_images_per_s']:,.0f} | {row['times_int8']:.2f} |"
        )
    return "\n".join(lines)


def machine(threads: int) -> dict[str, str | int]:
    """What the numbers were taken on."""
    from importlib.metadata import version

    import onnxruntime

    status = native_status()
    compiler = subprocess.run(
        [status.compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": threads,
        "kernels": f"{status.note} ({', '.join(status.features)})",
        "compiler": compiler.stdout.splitlines()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
        "qonnx": version("qonnx"),
        "load_average": f"{os.getloadavg()[0]:.1f}",
    }


def write(rows: list[dict[str, Any]], about: dict[str, str | int], command: str) -> None:
    """docs/results/executor.json and .md."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    body = {"command": command, "machine": about, "rows": rows}
    (RESULTS / "executor.json").write_text(json.dumps(body, indent=1) + "\n")
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    text = (
        "# Integer executor: images per second\n\n"
        f"`{command}`; source of every figure: measurement. Random weights; our outputs equal the\n"
        "reference interpreter's.\n\n"
        f"{facts}\n\n{table(rows)}\n"
    )
    (RESULTS / "executor.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--threads", type=int, default=available_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-qonnx", action="store_true")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    about = machine(args.threads)
    rows = []
    for net in args.nets:
        rows += bench(net, args.threads, args.rounds, not args.no_qonnx)
        print(table([row for row in rows if row["net"] == net]), flush=True)
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    if not args.no_write:
        write(rows, about, " ".join(["python", "benchmarks/executor.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
