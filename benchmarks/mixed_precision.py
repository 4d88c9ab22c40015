# SPDX-License-Identifier: Apache-2.0
"""Mixed precision by layer against Ristretto's search, at equal accuracy.

    python benchmarks/mixed_precision.py
    python benchmarks/mixed_precision.py --model mnist_cnn --data mnist --weights mnist.pt

The first takes face_densenet10 with the weights beside the results (docs/faces.md says where they
come from). Ristretto's search runs with its dynamic fixed point and its minifloats, each with sound
arithmetic and with the arithmetic of its public code. The smallest network among them that keeps
the margin is the one to beat: our search is asked for the smallest network whose metric is at least
as good. Bits are those of all parameters (tables, scales and biases included) and of all values
that convolutions and dense layers read for one image, which is the same set of values for both.

Writes docs/results/mixed_precision.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitwright.base.files import atomic_write
from bitwright.explore.search.candidates import parse_candidates
from bitwright.explore.search.goals import Cost, Goal, Kind
from bitwright.explore.search.metrics import metric_for
from bitwright.explore.search.mixed import Options, search_mixed
from bitwright.explore.search.mixed_result import MixedResult
from bitwright.explore.searches import front_svg
from bitwright.explore.sizes import SizeReport
from bitwright.explore.subject import Subject, find_subject
from bitwright.papers.ristretto.run import RistrettoResult, ristretto_size, search_ristretto
from bitwright.quantize.ptq.calibration import calibrate
from bitwright.quantize.ptq.folding import fold_batch_norms
from bitwright.report.scatter import Point

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
#: Trained networks that are part of the repository.
WEIGHTS = {"face_densenet10": RESULTS / "face_densenet10.safetensors"}
MODES = ("dynamic_fixed_point", "minifloat")
PARITIES = ("mended", "gpu")


def clocked(work: Any) -> tuple[Any, dict[str, float]]:
    """A result with its wall and processor seconds."""
    wall, used = time.monotonic(), time.process_time()
    result = work()
    spent = {"wall": time.monotonic() - wall, "processor": time.process_time() - used}
    return result, {key: round(value, 1) for key, value in spent.items()}


def counted(report: SizeReport) -> dict[str, float]:
    """The bits that are compared."""
    read = report.layer_inputs[1]
    return {
        "parameter_bits": report.parameter_bits,
        "layer_input_bits": read,
        "bits": report.parameter_bits + read,
        "parameter_rate": report.parameter_rate,
        "network_rate": report.network_rate,
        "memory_ratio": report.memory_ratio,
    }


def ristretto_row(
    subject: Subject, model: nn.Module, metric: Any, mode: str, parity: str, args: Any
) -> tuple[RistrettoResult, dict[str, Any]]:
    """One of Ristretto's searches, measured."""
    images = subject.train.take(range(args.images))
    result, spent = clocked(
        lambda: search_ristretto(
            model, metric, images, mode=mode, margin=args.margin, parity=parity
        )
    )
    report = ristretto_size(model, result.rules, subject.sample_shape)
    row = {
        "search": f"Ristretto, {mode.replace('_', ' ')}, {parity}",
        "metric": result.outcome.accuracy,
        "within_margin": result.outcome.within_margin,
        **counted(report),
        **subject.final(result.model(model)),
        "seconds": spent,
        "chosen": vars(result.outcome.chosen),
    }
    return result, row


def mixed_row(
    subject: Subject, model: nn.Module, metric: Any, least: float, args: Any
) -> tuple[MixedResult, dict[str, Any]]:
    """Our search for the same metric."""
    goal = Goal(Kind.ACCURACY, least, text=f"accuracy>={100 * least:.2f}%")
    options = Options(
        minimise=Cost.MEMORY,
        images=args.images,
        calibration=args.images,
        points=args.points,
        refinements=args.refinements,
        base=subject.quant,
    )
    candidates = parse_candidates(args.candidates, args.activations)
    result, spent = clocked(
        lambda: search_mixed(model, metric, subject.train, goal, candidates, options=options)
    )
    chosen = calibrate(model, result.policy, subject.train.take(range(args.images)))
    row = {
        "search": "mixed precision by layer",
        "metric": result.best.accuracy,
        "within_margin": result.best.accuracy >= least,
        **counted(result.report),
        **subject.final(chosen),
        "seconds": spent,
    }
    return result, row


def table(rows: list[dict[str, Any]], facts: dict[str, Any], result: MixedResult) -> str:
    """The page."""
    final = next(key for key in rows[0] if "accuracy" in key)
    lines = [
        "# Mixed precision against Ristretto's search",
        "",
        f"`{facts['command']}`, {facts['date']}. {facts['model']}, {facts['metric']} "
        f"{100 * facts['baseline']:.2f} % in float ({final} {100 * facts['final_float']:.2f} %); "
        f"margin {facts['margin']:g} %. {facts['threads']} threads; load average "
        f"{facts['load']:.1f} at the start.",
        "",
        f"| search | {facts['metric']} % | {final} % | parameters kbit | layer inputs kbit "
        "| all kbit | parameter rate | wall s | processor s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        note = "" if row["within_margin"] else " (beyond the margin)"
        lines.append(
            f"| {row['search']}{note} | {100 * row['metric']:.2f} | {100 * row[final]:.2f} "
            f"| {row['parameter_bits'] / 1000:.0f} | {row['layer_input_bits'] / 1000:.0f} "
            f"| {row['bits'] / 1000:.0f} | {row['parameter_rate']:.2f} "
            f"| {row['seconds']['wall']:.0f} | {row['seconds']['processor']:.0f} |"
        )
    lines += [
        "",
        f"Against `{facts['reference']}`: {100 * facts['saved']:.1f} % fewer bits in all, "
        f"{100 * facts['saved_parameters']:.1f} % fewer bits of parameters, at a metric "
        f"{100 * facts['gained']:+.2f} points.",
        "",
        "![networks measured](mixed_precision.svg)",
        "",
        "In the plot our networks have all features counted that are quantized, Ristretto's only "
        "those that layers read.",
        "",
    ]
    rest = result.to_markdown().partition("\n\n")[2]
    return "\n".join(lines) + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="face_densenet10")
    parser.add_argument("--data", default="orl")
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--metric", default=None, help="top1, agreement or verification")
    parser.add_argument("--margin", type=float, default=10.0, help="of Ristretto's search, percent")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--refinements", type=int, default=12)
    parser.add_argument("--candidates", default=None)
    parser.add_argument("--activations", default=None)
    parser.add_argument("--fold", action="store_true", help="fold batch norms first")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    weights = args.weights or WEIGHTS.get(args.model)
    subject = find_subject(args.model, data=args.data, weights=weights)
    model = fold_batch_norms(subject.model) if args.fold else subject.model
    metric = metric_for(subject, args.metric)
    baseline, final_float = metric(model), subject.final(model)
    rows, found = [], []
    for mode in MODES:
        for parity in PARITIES:
            result, row = ristretto_row(subject, model, metric, mode, parity, args)
            print(json.dumps(row), flush=True)
            rows.append(row)
            found.append(result)
    good = [row for row in rows if row["within_margin"]]
    if not good:
        sys.exit("no search of Ristretto keeps the margin; give a larger --margin")
    reference = min(good, key=lambda row: row["bits"])
    result, row = mixed_row(subject, model, metric, reference["metric"], args)
    print(json.dumps(row), flush=True)
    rows.append(row)
    facts = {
        "command": "python benchmarks/mixed_precision.py " + _given(),
        "date": time.strftime("%Y-%m-%d"),
        "model": args.model + (", batch norm folded" if args.fold else ""),
        "metric": metric.name,
        "baseline": baseline,
        "final_float": next(iter(final_float.values())),
        "margin": args.margin,
        "threads": args.threads,
        "load": load,
        "reference": reference["search"],
        "saved": 1 - row["bits"] / reference["bits"],
        "saved_parameters": 1 - row["parameter_bits"] / reference["parameter_bits"],
        "gained": row["metric"] - reference["metric"],
    }
    content = {"facts": facts, "rows": rows, "mixed": result.to_json()}
    content["ristretto"] = [r.outcome.to_json() for r in found]
    atomic_write(args.out / "mixed_precision.json", json.dumps(content, indent=1) + "\n")
    others = tuple(
        Point(r["search"], "Ristretto", _memory(r) / 8000, 100 * r["metric"]) for r in rows[:-1]
    )
    atomic_write(args.out / "mixed_precision.svg", front_svg(args.model, result, others))
    atomic_write(args.out / "mixed_precision.md", table(rows, facts, result))
    print(f"{100 * facts['saved']:.1f} % fewer bits than {reference['search']}")


def _given() -> str:
    """The arguments, without the folder for the results."""
    words = sys.argv[1:]
    if "--out" in words:
        at = words.index("--out")
        words = words[:at] + words[at + 2 :]
    return " ".join(words)


def _memory(row: dict[str, Any]) -> float:
    return float(row["bits"])


if __name__ == "__main__":
    main()
