# SPDX-License-Identifier: Apache-2.0
"""Exact one-dimensional k-means beside scikit-learn's: time and squared error.

    python benchmarks/clustering.py                         # prints the table, writes docs/results/
    python benchmarks/clustering.py --largest 100000 --no-write

Values are float32, normal numbers times a log-normal factor, which gives them the long tails that
weights have, and nearly all distinct. scikit-learn's `KMeans` (one start, one thread) runs
up to 10^5 values; beyond, its k * n distances a step take minutes.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import numpy as np
import sklearn
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from bitwright.formats.clustering import Clusters, kmeans
from bitwright.formats.clustering_path import KMEANS
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
LARGEST_FOR_SKLEARN = 100_000
CASES = ((10_000, 16), (100_000, 16), (100_000, 512), (1_500_000, 16), (1_500_000, 512),
         (1_500_000, 4096))  # fmt: skip


def values(count: int) -> np.ndarray:
    """The same for the same count."""
    rng = np.random.default_rng(count)
    return (rng.normal(size=count) * np.exp(rng.normal(size=count))).astype(np.float32)


def timed(x: np.ndarray, k: int) -> tuple[Clusters, float]:
    start = time.process_time()
    found = kmeans(x, k, allow_fewer=True)
    return found, time.process_time() - start


def theirs(x: np.ndarray, k: int) -> tuple[float, float]:
    """Error and seconds of scikit-learn's, one start on one thread."""
    start = time.process_time()
    with threadpool_limits(1):
        found = KMeans(k, n_init=1, random_state=0).fit(x.reshape(-1, 1).astype(np.float64))
    return float(found.inertia_), time.process_time() - start


def line(count: int, k: int) -> str:
    """One row: our seconds and error, theirs, and the ratio of errors."""
    x = values(count)
    exact, seconds = timed(x, k)
    cells = [f"{count} ({exact.distinct})", f"{k}", f"{seconds:.2f}", f"{exact.inertia:.6g}"]
    if count > LARGEST_FOR_SKLEARN:
        return f"| {' | '.join(cells)} | - | - | - |"
    local, their_seconds = theirs(x, k)
    cells += [
        f"{their_seconds:.2f}",
        f"{local:.6g}",
        f"{local / exact.inertia:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Exact k-means against scikit-learn's.")
    parser.add_argument("--largest", type=int, default=1_500_000, help="leave out larger cases")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    kmeans(values(1000), 7)  # builds the C program
    theirs(values(1000), 7)
    lines = [
        "| values (distinct) | k | exact s | error | scikit-learn s | error | errors' ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for count, k in CASES:
        if count <= options.largest:
            lines.append(line(count, k))
            print(lines[-1], flush=True)
    if not options.no_write:
        kernel = "C" if KMEANS.cdll is not None else "Python (no C compiler)"
        page = (
            "# One-dimensional k-means\n\n"
            f"`{' '.join(['python benchmarks/clustering.py', *sys.argv[1:]])}` on "
            f"{cpu_name()}, kernel {kernel}, numpy "
            f"{np.__version__}, scikit-learn {sklearn.__version__}, python "
            f"{platform.python_version()}; processor time.\n\n"
        )
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "clustering.md").write_text(page + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
