# SPDX-License-Identifier: Apache-2.0
"""Products of two matrices of +1 and -1 on one processor, against its limit and against others.

    python benchmarks/xnor.py               # the table, and docs/results/xnor.{md,json}
    python benchmarks/xnor.py --rounds 5 --no-write

Everything is timed in one process, alternately, in rounds; a figure is the median of the rounds'
best, a ratio the median of the rounds' ratios to numpy's float32 product of the same round. The
processor's limit is a loop of exclusive or, count and add on registers alone (`bw_xnor_limit`),
timed beside the products. Before timing, every contender must give numpy's sums. Contenders:
the packed product with activations packed beforehand, as bytes, and as floats that are packed
first; the same in two threads; AMX with activations as bytes; torch's int8 product; Numba's
popcount loop, where Numba is installed; OpenCL kernels by the device's clock and by the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from executor import machine

from bitwright.base.errors import ToolError
from bitwright.ir.executor.alignment import empty_aligned
from bitwright.ir.executor.xnor import AMX, POPCOUNT, XNOR, BinaryMatrix, pack_signs

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "xnor.json"
#: Rows of activations, rows of weights, columns.
SHAPES = ((1024, 1024, 1024), (512, 4096, 512), (512, 512, 512), (784, 784, 784), (1, 4096, 4096))
NUMPY = "numpy float32"
_SLOT_S = 0.12
_LIMIT_ROUNDS = 50_000

Run = Callable[[], Any]


def best(
    run: Run, seconds: float = _SLOT_S, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Shortest seconds of a call within a slot of time, by a clock."""
    found, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = clock()
        run()
        found = min(found, clock() - start)
        if time.perf_counter() > end:
            return found


def limit() -> float:
    """Products of one bit a nanosecond that this core does on registers alone."""
    library, start = XNOR.require(), np.zeros(1, np.int64)
    bits = library.bw_xnor_limit(10, start.ctypes.data)
    spent = best(lambda: library.bw_xnor_limit(_LIMIT_ROUNDS, start.ctypes.data))
    return float(bits) * _LIMIT_ROUNDS / spent * 1e-9


def contenders(
    shape: tuple[int, int, int], threads: int
) -> dict[str, tuple[Run, Callable[[], float]]]:
    """Name -> what runs, and the clock that times it; all give the same sums."""
    rows, outputs, columns = shape
    random = np.random.default_rng(0)
    x = (2 * random.integers(0, 2, (rows, columns)) - 1).astype(np.int8)
    weight = (2 * random.integers(0, 2, (outputs, columns)) - 1).astype(np.int8)
    floats, matrix = x.astype(np.float32), BinaryMatrix(weight)
    transposed, packed = weight.astype(np.float32).T, pack_signs(x)
    wall = time.perf_counter
    # For all: fresh memory costs more than sums do, and memory across lines of the cache as well.
    out, float_out = (empty_aligned((rows, outputs), kind) for kind in (np.int32, np.float32))
    found: dict[str, tuple[Run, Callable[[], float]]] = {
        NUMPY: (lambda: np.matmul(floats, transposed, out=float_out), wall),
        "packed": (lambda: matrix.packed_product(packed, out=out), wall),
        "packed, from int8": (lambda: matrix.product(x, engine=POPCOUNT, out=out), wall),
        "packed, from float32": (lambda: matrix.product(floats, engine=POPCOUNT, out=out), wall),
        f"packed, {threads} threads": (
            lambda: matrix.packed_product(packed, threads=threads, out=out), wall,
        ),
    }  # fmt: skip
    if AMX in matrix.engines():
        found["AMX, from int8"] = (lambda: matrix.product(x, engine=AMX, out=out), wall)
    found["chosen by measuring, from int8"] = (lambda: matrix.product(x, out=out), wall)
    found |= _torch(x, weight) | _numba(packed, pack_signs(weight), columns)
    return found | _opencl(floats, weight)


def _torch(x: np.ndarray, weight: np.ndarray) -> dict[str, tuple[Run, Callable[[], float]]]:
    import torch

    torch.set_num_threads(1)
    if len(x) < 17:  # it asks for more rows on some devices
        return {}
    left, right = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(weight.T))
    return {"torch._int_mm": (lambda: torch._int_mm(left, right).numpy(), time.perf_counter)}


def _numba(
    a: np.ndarray, w: np.ndarray, columns: int
) -> dict[str, tuple[Run, Callable[[], float]]]:
    """A popcount loop as one writes it with Numba."""
    try:
        import numba
    except ImportError:
        return {}

    @numba.njit(fastmath=True)
    def product(a, w, columns, out):  # type: ignore[no-untyped-def]
        for i in range(a.shape[0]):
            for j in range(w.shape[0]):
                unequal = 0
                for k in range(a.shape[1]):
                    v = a[i, k] ^ w[j, k]
                    v = v - ((v >> np.uint64(1)) & np.uint64(0x5555555555555555))
                    v = (v & np.uint64(0x3333333333333333)) + (
                        (v >> np.uint64(2)) & np.uint64(0x3333333333333333)
                    )
                    v = (v + (v >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
                    unequal += np.int64((v * np.uint64(0x0101010101010101)) >> np.uint64(56))
                out[i, j] = columns - 2 * unequal
        return out

    out = np.empty((len(a), len(w)), np.int32)
    return {"Numba": (lambda: product(a, w, columns, out), time.perf_counter)}


def _opencl(floats: np.ndarray, weight: np.ndarray) -> dict[str, tuple[Run, Callable[[], float]]]:
    from bitwright.papers.bnn_soc.device import Device
    from bitwright.papers.bnn_soc.opencl_engine import DeviceMatrix

    try:
        device = Device.open()
    except ToolError:
        return {}
    plain = DeviceMatrix(device, weight, binary=False)
    packed = DeviceMatrix(device, weight, binary=True)

    def clock() -> float:
        return device.traffic.kernel_s

    return {
        "OpenCL float32, kernel": (lambda: plain.product(floats), clock),
        "OpenCL packed, kernel": (lambda: packed.product(floats), clock),
        "OpenCL packed, with transfers": (lambda: packed.product(floats), time.perf_counter),
    }


def measure(shape: tuple[int, int, int], rounds: int, threads: int) -> dict[str, Any]:
    """Medians of one shape."""
    runs = contenders(shape, threads)
    expected = np.asarray(runs[NUMPY][0]()).astype(np.int64)
    for name, (run, _) in runs.items():
        if not np.array_equal(np.asarray(run()).astype(np.int64), expected):
            raise SystemExit(f"{name} gives other sums for {shape}")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    limits = []
    for _ in range(rounds):
        limits.append(limit())
        for name, (run, clock) in runs.items():
            seconds[name].append(best(run, clock=clock))
    products = float(np.prod(shape))
    top = statistics.median(limits)
    rows = {
        name: {
            "ms": statistics.median(spent) * 1e3,
            "products_per_ns": products / statistics.median(spent) * 1e-9,
            "against_numpy": statistics.median(
                base / own for base, own in zip(seconds[NUMPY], spent, strict=True)
            ),
            "of_the_limit": statistics.median(
                products / own * 1e-9 / roof for own, roof in zip(spent, limits, strict=True)
            ),
        }
        for name, spent in seconds.items()
    }
    pair = zip(seconds["packed"], seconds[f"packed, {threads} threads"], strict=True)
    together = statistics.median(one / several for one, several in pair)
    return {"shape": shape, "limit": top, "threads_gain": together, "rows": rows}


def page(found: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The tables as Markdown."""
    lines = [
        "# Products of +1 and -1", "",
        "Made by `python benchmarks/xnor.py`; its head says how. Products a nanosecond are "
        "multiply-accumulates; the limit is that of exclusive or, count and add on registers of "
        "one core.", "",
        ", ".join(f"{key}: {value}" for key, value in about.items()), "",
    ]  # fmt: skip
    if float(about["load_average"]) > about["cores"]:
        lines += [
            "**The machine was busy with other things: ratios and the gain of threads say "
            "nothing. Run it on a quiet one.**", "",
        ]  # fmt: skip
    for one in found:
        rows, outputs, columns = one["shape"]
        lines += [
            f"## {rows} x {outputs} x {columns}", "",
            f"Limit {one['limit']:.0f} products a nanosecond; several threads "
            f"x{one['threads_gain']:.2f}.", "",
            "| contender | ms | products/ns | against numpy | of the limit |",
            "|---|---:|---:|---:|---:|",
        ]  # fmt: skip
        lines += [
            f"| {name} | {row['ms']:.3f} | {row['products_per_ns']:.0f} | "
            f"x{row['against_numpy']:.1f} | {row['of_the_limit']:.0%} |"
            for name, row in one["rows"].items()
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    found = [measure(shape, args.rounds, args.threads) for shape in SHAPES]
    about = {**machine(1), "flags": " ".join(XNOR.loaded.flags)}
    text = page(found, about)
    print(text)
    if not args.no_write:
        RESULTS.write_text(json.dumps({"machine": about, "shapes": found}, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
