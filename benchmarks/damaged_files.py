# SPDX-License-Identifier: Apache-2.0
"""Damaged files for every reader: how many are refused, how many can still be read, what they cost.

    python benchmarks/damaged_files.py [--files 100000] [--seeds 10] [--out PATH]

Every file is a real one with a few random changes, inside of packed ones too (`tests/torch/fuzz.py`
says which). Found is whatever a reader must not do: end with anything but an error that says what
is wrong, take more than 10 s of the processor or 2 GiB, or compute with numbers that overflowed.
The files that were made to do harm (`tests/torch/hostile_files.py`) are read, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bitwright.base.files import atomic_write
from bitwright.base.processors import available_threads
from bitwright.pipeline.steps.baseline import cpu_name

_ROOT = Path(__file__).parents[1]
_TIMEOUT_S = 7200.0
_MIB = 1 << 20


def read(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """What a process says that reads such files, a row a reader."""
    folder.mkdir()
    argv = [sys.executable, "-m", "tests.torch.fuzz", str(folder), *map(str, arguments)]
    done = subprocess.run(
        argv, cwd=_ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    for log in folder.glob("findings.jsonl"):
        print(log.read_text(), file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def added(parts: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Counts of several processes together, and the most of what one file took."""
    total: dict[str, dict[str, Any]] = {}
    for row in (row for part in parts for row in part):
        found = total.setdefault(row["of"], dict.fromkeys(row, 0) | {"of": row["of"]})
        for key in ("refused", "read", "found"):
            found[key] += row[key]
        for key in ("seconds", "bytes"):
            found[key] = max(found[key], row[key])
    return list(total.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, the sum in its last line."""
    lines = [
        "| reader | files | refused | read | found | most of a file, CPU s | most of a file, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    whole = {"of": "all", **{key: sum(row[key] for row in rows) for key in ("refused", "read")}}
    whole |= {"found": sum(row["found"] for row in rows)}
    whole |= {key: max(row[key] for row in rows) for key in ("seconds", "bytes")}
    for row in [*rows, whole]:
        lines.append(
            f"| {row['of']} | {row['refused'] + row['read'] + row['found']} | {row['refused']} "
            f"| {row['read']} | {row['found']} | {row['seconds']:.3f} | {row['bytes'] / _MIB:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=10, help="processes that share the files")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs/results/damaged_files")
    given = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(available_threads()) as pool:
        seeds = range(1, given.seeds + 1)
        share = given.files // given.seeds
        parts = pool.map(lambda seed: read(Path(folder) / str(seed), share, seed), seeds)
        rows = added(parts)
        hostile = read(Path(folder) / "hostile", "hostile")
    took = time.monotonic() - start
    taken = [row["of"] for row in hostile if row["read"]]
    harmed = [row["of"] for row in hostile if row["found"]]
    conditions = (
        f"`python benchmarks/damaged_files.py --files {given.files} --seeds {given.seeds}` on "
        f"{cpu_name()}, {available_threads()} cores, torch {version('torch')}, {took:.0f} s."
    )
    text = (
        f"# Damaged files\n\n{conditions} What is counted: the head of "
        f"`benchmarks/damaged_files.py`. Readers of HDF5 work in a process of their own, whose "
        f"memory is counted where it is more than for the real file.\n\n"
        f"{table(rows)}\n\nOf {len(hostile)} files made to do harm, {len(harmed)} "
        f"did; {len(taken)} can be read since they do nothing then "
        f"({', '.join(taken)}), the others are refused.\n"
    )
    print(text)
    atomic_write(given.out.with_suffix(".md"), text)
    body = {"conditions": conditions, "readers": rows, "hostile": hostile}
    atomic_write(given.out.with_suffix(".json"), json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
