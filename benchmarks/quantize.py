# SPDX-License-Identifier: Apache-2.0
"""Quantize-dequantize throughput of every format on a CPU, beside QPyTorch and torchao.

    python benchmarks/quantize.py                    # prints the table, writes docs/results/
    python benchmarks/quantize.py --count 1000000 --rounds 3 --only e4m3 --no-write

One float32 tensor of normal numbers goes through `fake_quantize` and through what the other
libraries have for the same format (`pip install qtorch torchao ninja`; QPyTorch compiles its C++
part when it is imported; what cannot be imported is left out and named). All run in one process,
alternately, so that whatever else the machine does meets all of them; the first call of each is
not counted. A ratio is theirs over ours, of the fastest rounds and of the medians: above 1 we are
faster. "same" is the share of values on which theirs are ours, for nearest rounding; rules differ
at ties and ends of ranges. Memory for results is allocated by every call, as users have it: for
40 MB the system takes some 20 ms, unless the allocator happens to have them at hand.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bitwright.formats import CodebookFormat, Format, Rounding, parse_format
from bitwright.formats.pytorch.fake_quantize import fake_quantize
from bitwright.formats.pytorch.quantize_library import QUANTIZE
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
BLOCK = 32
Peer = Callable[[Tensor], Tensor]


@dataclass
class Row:
    """One format and rule, ours and theirs."""

    name: str
    rounding: Rounding
    ours: Peer
    peers: dict[str, Peer] = field(default_factory=dict)


def ours(number_format: Format | str, scale: float | Tensor | None, rounding: Rounding) -> Peer:
    chosen = parse_format(number_format)
    return lambda x: fake_quantize(x, chosen, scale, rounding=rounding, noise=1)


def qtorch_peers() -> dict[tuple[str, Rounding], Peer]:
    """What QPyTorch has, by our names; empty if it cannot be imported."""
    try:
        from qtorch.quant import block_quantize, fixed_point_quantize, float_quantize
    except (ImportError, RuntimeError, OSError) as error:
        print(f"QPyTorch is left out: {error}", file=sys.stderr)
        return {}
    found: dict[tuple[str, Rounding], Peer] = {}
    for mode in ("nearest", "stochastic"):
        rule = Rounding.HALF_EVEN if mode == "nearest" else Rounding.STOCHASTIC

        def fixed(x: Tensor, width: int, fraction: int, mode: str = mode) -> Tensor:
            return fixed_point_quantize(x, width, fraction, rounding=mode)

        def floating(x: Tensor, exponent: int, mantissa: int, mode: str = mode) -> Tensor:
            return float_quantize(x, exponent, mantissa, rounding=mode)

        def blocks(x: Tensor, mode: str = mode) -> Tensor:
            return block_quantize(x.view(-1, BLOCK), 8, dim=0, rounding=mode).view(x.shape)

        found["int8 (2^-5)", rule] = lambda x, f=fixed: f(x, 8, 5)
        found["int4 (2^-2)", rule] = lambda x, f=fixed: f(x, 4, 2)
        found["fixed<8,3>", rule] = lambda x, f=fixed: f(x, 8, 5)
        found["int16 (2^-12)", rule] = lambda x, f=fixed: f(x, 16, 12)
        for e, m in ((4, 3), (5, 2), (2, 1), (2, 3), (3, 2), (5, 10), (8, 7)):
            found[f"e{e}m{m}", rule] = lambda x, f=floating, e=e, m=m: f(x, e, m)
        found["mxint8", rule] = blocks
    return found


def torchao_peers(scale: float, channels: Tensor, table: Tensor) -> dict[str, Peer]:
    """What torchao has (nearest only), by our names; empty if it cannot be imported."""
    try:
        from torchao.prototype.custom_fp_utils import (
            _f32_to_floatx_unpacked,
            _floatx_unpacked_to_f32,
        )
        from torchao.prototype.mx_formats import mx_tensor
        from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
        from torchao.prototype.quantization.codebook import codebook_ops
        from torchao.quantization import quant_primitives as ao
    except (ImportError, RuntimeError, OSError) as error:
        print(f"torchao is left out: {error}", file=sys.stderr)
        return {}
    zero = torch.zeros(1, dtype=torch.int32)

    def affine(x: Tensor, bits: int, unit: Tensor, rows: int = 1) -> Tensor:
        shaped = x.view(rows, -1)
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        size = (1, shaped.shape[1])
        points = zero.expand(unit.shape)
        return ao._fake_quantize_affine(shaped, size, unit, points, torch.int8, low, high).view(
            x.shape
        )

    def float8(x: Tensor, dtype: torch.dtype) -> Tensor:
        unit = torch.ones(1)
        return ao._dequantize_affine_float8(ao._quantize_affine_float8(x, unit, dtype), unit)

    def floatx(x: Tensor, exponent: int, mantissa: int) -> Tensor:
        codes = _f32_to_floatx_unpacked(x, exponent, mantissa)
        return _floatx_unpacked_to_f32(codes, exponent, mantissa)

    def mx(x: Tensor, element: torch.dtype | str) -> Tensor:
        rows = x.view(-1, BLOCK)
        scales, codes = mx_tensor.to_mx(rows, element, BLOCK)
        return mx_tensor.to_dtype(codes, scales, element, BLOCK, torch.float32).view(x.shape)

    def codebook(x: Tensor) -> Tensor:
        entries, one = table.view(-1, 1, 1), torch.ones(x.numel() // 1000, 1, 1)
        codes = codebook_ops.quantize_codebook(
            x.view(-1, 1000), entries, one, chunk_size=4096, code_dtype=torch.int32
        )
        return codebook_ops.dequantize_codebook(codes, entries, one).view(x.shape)

    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    return {
        "int8 (2^-5)": lambda x: affine(x, 8, torch.tensor([2.0**-5])),
        "int8": lambda x: affine(x, 8, torch.tensor([scale])),
        "int8 by channel": lambda x: affine(x, 8, channels, len(channels)),
        "int4 (2^-2)": lambda x: affine(x, 4, torch.tensor([2.0**-2])),
        "e4m3": lambda x: float8(x, e4m3),
        "e5m2": lambda x: float8(x, e5m2),
        "e2m1": lambda x: floatx(x, 2, 1),
        "e2m3": lambda x: floatx(x, 2, 3),
        "e3m2": lambda x: floatx(x, 3, 2),
        "mxfp8": lambda x: mx(x, e4m3),
        "mxfp8_e5m2": lambda x: mx(x, e5m2),
        "mxfp6": lambda x: mx(x, DTYPE_FP6_E2M3),
        "mxfp6_e3m2": lambda x: mx(x, DTYPE_FP6_E3M2),
        "mxfp4": lambda x: mx(x, torch.float4_e2m1fn_x2),
        "cb16": codebook,
    }


def rows(count: int) -> list[Row]:
    """Every format, with nearest rounding, and one of every family with stochastic rounding."""
    torch.manual_seed(0)
    scale, channels = float(torch.tensor(0.0314)), torch.rand(100) / 32 + 0.01
    book = CodebookFormat(16).fitted(torch.randn(16).numpy())
    wide_book = CodebookFormat(256).fitted(torch.randn(256).numpy())
    unit = 3.0 / book.max_level
    table = torch.tensor([level * unit for level in book.table or ()])
    spread = channels.view(-1, 1).double()
    nearest = Rounding.HALF_EVEN
    plain: list[tuple[str, Format | str, float | Tensor | None]] = [
        ("int8 (2^-5)", "int8", 2.0**-5), ("int8", "int8", scale),
        ("int8 by channel", "int8", spread), ("int4 (2^-2)", "int4", 2.0**-2),
        ("int16 (2^-12)", "int16", 2.0**-12), ("fixed<8,3>", "fixed<8,3>", None),
        ("ternary", "ternary", 1.0), ("bipolar", "bipolar", 1.0),
        *((name, name, None) for name in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "e5m10", "e8m7")),
        ("e4m3<finite,flush>", "e4m3<finite,flush>", None),
        ("po2_4", "po2_4", 2.0**-6), ("po2_6<zero>", "po2_6<zero>", 2.0**-29),
        ("po2_5<zero,linear>", "po2_5<zero,linear>", 2.0**-12),
        ("cb16", book, unit), ("cb256", wide_book, 3.0 / wide_book.max_level),
        *((name, name, None) for name in ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4")),
        ("mxint8", "mxint8", None),
    ]  # fmt: skip
    qtorch, torchao = qtorch_peers(), torchao_peers(scale, channels, table)
    found = []
    for rule in (nearest, Rounding.STOCHASTIC):
        for name, number_format, given in plain:
            run = ours(number_format, given, rule)
            if name == "int8 by channel":
                run = lambda x, f=run: f(x.view(100, -1)).view(x.shape)  # noqa: E731
            peers = {}
            if (name, rule) in qtorch:
                peers["QPyTorch"] = qtorch[name, rule]
            if name in torchao and rule is nearest:
                peers["torchao"] = torchao[name]
            if rule is nearest or peers or name in ("po2_4", "cb16", "mxfp4"):
                found.append(Row(name, rule, run, peers))
    return found


def measure(row: Row, x: Tensor, rounds: int, clock: Callable[[], float]) -> dict[str, object]:
    """Seconds of every round and the share of equal values, by library."""
    jobs = {"ours": row.ours, **row.peers}
    expected = row.ours(x)
    same = {}
    for name, job in row.peers.items():
        share = float((job(x) == expected).double().mean())  # the first call of each: not counted
        if row.rounding is not Rounding.STOCHASTIC:  # else it says nothing
            same[name] = share
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = clock()
            job(x)
            seconds[name].append(clock() - start)
    return {
        "format": row.name,
        "rounding": str(row.rounding),
        "seconds": seconds,
        "same": same,
    }


def table(results: list[dict], count: int) -> str:
    lines = [
        "| format | rounding | ours ms | 10^6 values/s | QPyTorch / ours | torchao / ours | same |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        seconds = result["seconds"]
        best = {name: min(values) for name, values in seconds.items()}
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        cells = []
        for peer in ("QPyTorch", "torchao"):
            if peer not in best:
                cells.append("-")
                continue
            ratios = (best[peer] / best["ours"], middle[peer] / middle["ours"])
            cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
        same = ", ".join(f"{share:.4f}" for share in result["same"].values()) or "-"
        rate = count / best["ours"] / 1e6
        lines.append(
            f"| `{result['format']}` | {result['rounding']} | {best['ours'] * 1e3:.1f} "
            f"| {rate:.0f} | {' | '.join(cells)} | {same} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, str]:
    """What the figures depend on."""
    versions = {}
    for package in ("torch", "qtorch", "torchao"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        **versions,
        "python": platform.python_version(),
        "kernels": "C" if QUANTIZE.cdll is not None else "torch (no C compiler)",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Quantize-dequantize throughput of every format.")
    parser.add_argument("--count", type=int, default=10_000_000, help="values, a multiple of 4000")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    if options.count < 1 or options.count % 4000 != 0:  # whole blocks, channels and rows
        parser.error("--count must be a multiple of 4000")
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    x = torch.randn(options.count)
    results = []
    for row in rows(options.count):
        if options.only is None or options.only in row.name:
            results.append(measure(row, x, options.rounds, clock))
            print(table(results[-1:], options.count).splitlines()[-1], flush=True)
    text = table(results, options.count)
    if options.no_write:
        return 0
    where = machine()
    command = "python benchmarks/quantize.py " + " ".join(sys.argv[1:])
    notes = ", ".join(f"{key} {value}" for key, value in where.items())
    page = (
        "# Quantize-dequantize throughput\n\n"
        f"`{command.strip()}` on {notes}; {options.count} float32 values, {options.rounds} "
        f"alternating rounds, {options.clock} clock. Ratios are of the fastest rounds, in brackets "
        'of the medians; above 1 we are faster. "same": the share of values on which both agree '
        "(QPyTorch first), where rounding is not random. A dash: the library has no such format or "
        "rule. Our kernels take about 10 ms of 10^7 values; where 30 stand, the other 20 are the "
        "system's, which provides new memory for the result.\n\n"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "quantize.md").write_text(page + text + "\n")
    body = {"command": command, "machine": where, "count": options.count, "rows": results}
    (RESULTS / "quantize.json").write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
