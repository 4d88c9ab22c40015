# SPDX-License-Identifier: Apache-2.0
"""GM, MuPPET and float32: loss against modelled time on FPGPT (Vink 2023, chapter 6).

    python benchmarks/gm.py [--seeds 0 1] [--epochs 24] [--images 600]

A small network on the digits that come with the package, three runs a seed with the same settings
but for the policy; time is that of the convolutions on a die of a U250 (`fpgpt-u250`). Writes
docs/results/gm.json, gm.md and gm.svg.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

from results import RESULTS, command, keep, kept, machine, table
from torch import nn

from bitwright.data import load_dataset
from bitwright.data.dataset import DataSplits
from bitwright.data.splits import Keep, keep_some
from bitwright.models import build_model
from bitwright.report.svg import line_chart, standalone
from bitwright.train import TrainConfig, fit

HEADS = (
    "policy", "seed", "epochs", "modelled ms", "against float32", "last loss", "accuracy",
    "levels of the epochs",
)  # fmt: skip
MUPPET = {"resolution": 2, "patience": 2}
POLICIES: dict[str, dict[str, Any]] = {
    "float32": {"kind": "baseline"},
    "muppet": {"kind": "muppet", **MUPPET},
    "gm": {"kind": "gm", **MUPPET, "eps_threshold": 0.05, "omega": 1, "eta": 10, "psi": 3},
}
LADDER = {"muppet": [8, 12, 14, 16, "float32"], "gm": [4, 6, 8, 10, 12, 14, 16, "float32"]}


def run(name: str, seed: int, epochs: int, images: int) -> dict[str, Any]:
    data = keep_some(load_dataset("digits"), Keep(train=images, validation=200), 0)
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=seed)
    policy = POLICIES[name]
    if name == "gm":
        policy = {**policy, "climbs": LADDER["muppet"]}
    low: dict[str, Any] = {"policy": policy, "device": "fpgpt-u250", "float_epochs": 6}
    low |= {"lr_every": 2, "ladder": LADDER.get(name, LADDER["muppet"])}
    config = TrainConfig(
        epochs=epochs, batch_size=50, lr=0.05, optimizer="sgd", threads=1, keep="last", seed=seed,
        low_precision=low,
    )  # fmt: skip
    return {"policy": name, "seed": seed, **trained(model, data, config)}


def trained(model: nn.Module, data: DataSplits, config: TrainConfig) -> dict[str, Any]:
    """Accuracy on held-out images, and of each epoch modelled seconds, loss and levels."""
    with tempfile.TemporaryDirectory() as folder:
        done = fit(model, data, config, run_dir=Path(folder))
        lines = (Path(folder) / "precision.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    return {
        "accuracy": round(done.validation_accuracy, 4),
        "seconds": [entry["device_seconds"] for entry in log],
        "losses": [entry.train_loss for entry in done.history],
        "levels": [entry["level"] for entry in log],
    }


def draw(runs: list[dict[str, Any]]) -> None:
    first = [one for one in runs if one["seed"] == runs[0]["seed"]]
    times = {one["policy"]: [1e3 * t for t in accumulate(one["seconds"])] for one in first}
    losses = {one["policy"]: one["losses"] for one in first}
    title = "Training loss against modelled time"
    chart = line_chart(title, times, losses, "loss", "milliseconds")
    (RESULTS / "gm.svg").write_text(standalone(chart) + "\n", encoding="utf-8")


def page(found: dict[str, Any]) -> str:
    runs = found["runs"]
    whole = {one["seed"]: sum(one["seconds"]) for one in runs if one["policy"] == "float32"}
    rows = []
    for one in runs:
        took = sum(one["seconds"])
        rows.append(
            (
                one["policy"], str(one["seed"]), str(len(one["seconds"])), f"{1e3 * took:.1f}",
                f"{whole[one['seed']] / took:.2f} x", f"{one['losses'][-1]:.4f}",
                str(one["accuracy"]), ", ".join(dict.fromkeys(one["levels"])),
            )
        )  # fmt: skip
    lines = [
        "# GM, MuPPET, float32", "",
        f"By `benchmarks/gm.py`: digits_cnn, {found['images']} digits, {found['epochs']} epochs at "
        "most, batches of 50. Modelled time: convolutions of all steps on FPGPT, one die of a U250 "
        "at 100 MHz, each product on its best kernel at its word length. The drawing shows the "
        "first seed.", "", "![loss against modelled time](gm.svg)", "", *table(HEADS, rows), "",
        f"`{found['command']}`; {found['machine']}; float32 sums of another processor may differ "
        "in their last bits.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="table and drawing of gm.json again")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--images", type=int, default=600)
    wanted = parser.parse_args()
    if wanted.draw:
        found = kept("gm")
    else:
        found = {
            "images": wanted.images, "epochs": wanted.epochs, "command": command(),
            "machine": machine("torch"), "runs": [],
        }  # fmt: skip
        for seed in wanted.seeds:
            for name in POLICIES:
                one = run(name, seed, wanted.epochs, wanted.images)
                print({k: v for k, v in one.items() if k not in ("seconds", "losses")}, flush=True)
                found["runs"].append(one)
    keep("gm", found, page)
    draw(found["runs"])


if __name__ == "__main__":
    main()
