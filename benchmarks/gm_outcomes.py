# SPDX-License-Identifier: Apache-2.0
"""Which outcomes of GM's experiments (Vink 2023, 6.4) hold on ResNet-20 with a part of CIFAR-10.

    python benchmarks/gm_outcomes.py [--data FOLDER] [--seeds 0 1] [--epochs 40] [--images 500]

One run with MuPPET and one with each setting of GM that was tried there, all else alike; time is
that of the convolutions on a die of a U250 (`fpgpt-u250`). Two runs are compared by the time in
which each comes to a loss that both reach: ``gain`` is the time of the other by that of the first.
The networks trained there are longer and larger: this says whether an outcome is one of the method,
not what GM brings. Runs in docs/results/gm_outcomes.json are kept; an interrupted call goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gm import trained
from results import command, keep, kept, machine, table

from bitwright.data import load_dataset
from bitwright.data.dataset import DataSplits
from bitwright.models import build_model
from bitwright.train import TrainConfig

NAME = "gm_outcomes"
MUPPET = {"resolution": 2, "patience": 2}
CLIMBS = [8, 12, 14, 16, "float32"]
TAIL = 6  # epochs in float32 at the end of every run
LADDER = [4, 6, 8, 10, 12, 14, 16, "float32"]
#: What was changed of the best set that is printed: eps 0.05, tau 0, omega 1, eta 10, psi 3.
SETTINGS: dict[str, dict[str, Any]] = {
    "eps 0.0005": {"eps_threshold": 0.0005},
    "eps 0.01": {"eps_threshold": 0.01},
    "best": {},
    "tau 0": {"eps_threshold": 0.06},
    **{
        f"tau {tau:g}": {"eps_threshold": 0.06, "tau_threshold": tau, "tau_unit": "share"}
        for tau in (1e-4, 1e-3, 1e-2, 1e-1)
    },
    "eta 200": {"eps_threshold": 0.0005, "eta": 200},
    "eta 50": {"eta": 50},
    "psi 1": {"psi": 1},
    "psi 5": {"psi": 5},
    "psi 10": {"psi": 10},
    **{
        f"omega {omega}, eta {eta}": {"omega": omega, "eta": eta}
        for omega, eta in ((3, 5), (3, 15), (10, 5), (10, 50))
    },
}
Runs = dict[str, dict[str, Any]]
_FASTER = 1.005  # gain from which on one counts as faster


def gain(runs: Runs, name: str, other: str) -> float:
    """Time of ``other`` by that of ``name`` to the lowest loss that both reach."""
    loss = max(min(runs[each]["losses"]) for each in (name, other))
    return time_to(runs[other], loss) / time_to(runs[name], loss)


def time_to(one: dict[str, Any], loss: float) -> float:
    times = accumulate(one["seconds"])
    return next(t for t, found in zip(times, one["losses"], strict=True) if found <= loss)


@dataclass(frozen=True)
class Claim:
    """An outcome that is printed.

    Attributes:
        text: what it says.
        figure: of a seed's runs.
        holds: for such a figure.
    """

    text: str
    figure: Callable[[Runs], float]
    holds: Callable[[float], bool]
    what: str = "gain"


def faster(name: str, other: str, text: str) -> Claim:
    return Claim(text, lambda runs: gain(runs, name, other), lambda g: g > _FASTER)


def not_faster(name: str, other: str, text: str) -> Claim:
    return Claim(text, lambda runs: gain(runs, name, other), lambda g: g <= _FASTER)


def lowest(runs: Runs, name: str) -> float:
    return float(min(runs[name]["losses"]))


CLAIMS = (
    faster("eps 0.0005", "muppet", "eps 0.0005 is faster than MuPPET"),
    faster("eps 0.01", "muppet", "eps 0.01 is faster than MuPPET"),
    faster("best", "muppet", "eps 0.05 is faster than MuPPET"),
    faster("best", "eps 0.01", "eps 0.05 is faster than 0.01"),
    faster("best", "eps 0.0005", "eps 0.05 is faster than 0.0005"),
    Claim(
        "eps 0.05: accuracy comparable with MuPPET's (within 2 points)",
        lambda runs: 100 * (runs["best"]["accuracy"] - runs["muppet"]["accuracy"]),
        lambda points: abs(points) <= 2,
        "points",
    ),
    not_faster("tau 0", "muppet", "eps 0.06, tau 0 is worse than MuPPET"),
    not_faster("tau 0.0001", "muppet", "eps 0.06, tau 1e-4 is worse than MuPPET"),
    *(
        faster(f"tau {tau:g}", "muppet", f"eps 0.06, tau {tau:g} is better than MuPPET")
        for tau in (1e-3, 1e-2, 1e-1)
    ),
    not_faster("eta 200", "muppet", "eps 0.0005, eta 200 gains nothing"),
    Claim(
        "eta 50 derails (its lowest loss is more than 1.5 times MuPPET's)",
        lambda runs: lowest(runs, "eta 50") / lowest(runs, "muppet"),
        lambda ratio: ratio > 1.5,
        "loss ratio",
    ),
    faster("best", "psi 1", "psi 3 is better than 1"),
    faster("best", "psi 5", "psi 3 is better than 5"),
    faster("psi 5", "psi 1", "psi 5 is better than 1"),
    not_faster("psi 10", "muppet", "psi 10 is slower than MuPPET"),
    not_faster("omega 3, eta 5", "muppet", "omega 3, eta 5 is worse than MuPPET"),
    not_faster("omega 3, eta 15", "muppet", "omega 3, eta 15 is worse than MuPPET"),
    faster("omega 10, eta 50", "omega 3, eta 15", "omega 10 is better than 3"),
    faster("best", "omega 10, eta 50", "omega 1 is better than 10"),
)


def in_few_bits(runs: Runs) -> Runs:
    """The epochs before all products are float32: every run ends with `TAIL` of those."""

    def cut(one: dict[str, Any]) -> dict[str, Any]:
        levels = one["levels"]
        end = levels.index("float32") if "float32" in levels else len(levels)
        return one | {name: one[name][:end] for name in ("seconds", "losses", "levels")}

    return {name: cut(one) for name, one in runs.items()}


def verdict(claim: Claim, runs: dict[str, Runs]) -> tuple[str, str]:
    figures = [claim.figure(each) for each in runs.values()]
    held = sum(claim.holds(figure) for figure in figures)
    word = {0: "not held", len(figures): "held"}.get(held, f"undecided, {held} of {len(figures)}")
    return f"{claim.what} " + ", ".join(f"{f:.3f}" for f in figures), word


def verdicts(whole: dict[str, Runs]) -> list[tuple[str, ...]]:
    """Of every claim: of all epochs, and of those in few bits (an accuracy is of the end alone)."""
    few = {seed: in_few_bits(runs) for seed, runs in whole.items()}
    return [
        (claim.text, *verdict(claim, whole), *(
            ("-", "-") if claim.what == "points" else verdict(claim, few)
        ))
        for claim in CLAIMS
    ]  # fmt: skip


def run(data: DataSplits, name: str, seed: int, epochs: int) -> dict[str, Any]:
    model = build_model(
        {"name": "resnet20", "options": {"stem": "strided"}}, 10, (32, 32, 3), seed=seed
    )
    gm = {"kind": "gm", **MUPPET, "eps_threshold": 0.05, "climbs": CLIMBS}
    policy = {"kind": "muppet", **MUPPET} if name == "muppet" else gm | SETTINGS[name]
    low: dict[str, Any] = {"policy": policy, "device": "fpgpt-u250", "float_epochs": TAIL}
    low |= {"lr_every": 2, "ladder": CLIMBS if name == "muppet" else LADDER}
    config = TrainConfig(
        epochs=epochs, batch_size=50, lr=0.1, optimizer="sgd", momentum=0.9, threads=1, keep="last",
        seed=seed, low_precision=low,
    )  # fmt: skip
    return trained(model, data, config)


def alike(whole: dict[str, Runs]) -> list[str]:
    """Groups of settings that gave the same losses in all seeds."""
    groups: dict[str, list[str]] = {}
    for name in SETTINGS:
        groups.setdefault(str([runs[name]["losses"] for runs in whole.values()]), []).append(name)
    return [", ".join(names) for names in groups.values() if len(names) > 1]


def levels_of(one: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(one["levels"]))


def page(found: dict[str, Any]) -> str:
    every = ("muppet", *SETTINGS)
    whole = {seed: runs for seed, runs in found["runs"].items() if set(every) <= set(runs)}
    lines = [
        "# GM on ResNet-20: which printed outcomes hold", "",
        f"By `benchmarks/gm_outcomes.py`: ResNet-20 behind a strided stem, {found['images']} "
        f"images of CIFAR-10, {found['epochs']} epochs at most, batches of 50; MuPPET's resolution "
        "and patience 2. Modelled time: convolutions of all steps on FPGPT, a die of a U250 at 100 "
        "MHz. Gain: time of the second by that of the first to the lowest training loss that both "
        f"reach. Held or not: all seeds say so. Every run ends with {TAIL} epochs in float32, "
        "which take 2.5 times as long and in which most come to their lowest loss; so the gains "
        "are given of the epochs before them, too. The document trains on all of CIFAR-100 and "
        "longer.",
        "",
    ]  # fmt: skip
    if whole:
        seeds = f"seeds {', '.join(whole)}"
        heads = ("printed", f"all epochs, {seeds}", "here", f"in few bits, {seeds}", "here")
        lines += [*table(heads, verdicts(whole)), ""]
        faster = (
            str(sum(gain(runs, name, "muppet") > _FASTER for name in SETTINGS))
            for each in (whole, {seed: in_few_bits(runs) for seed, runs in whole.items()})
            for runs in each.values()
        )
        found_faster = [*faster]
        half = len(whole)
        lines += [
            f"Of the {len(SETTINGS)} settings {', '.join(found_faster[:half])} are faster than "
            f"MuPPET in {seeds} ({', '.join(found_faster[half:])} in few bits): the seed decides "
            "more than the setting. Settings whose runs are the same, number for number: "
            f"{'; '.join(alike(whole))}.",
            "",
        ]  # fmt: skip
    rows = (
        (
            name, seed, str(len(one["seconds"])), f"{1e3 * sum(one['seconds']):.1f}",
            f"{min(one['losses']):.4f}", str(one["accuracy"]), levels_of(one),
        )
        for seed, runs in found["runs"].items()
        for name, one in runs.items()
    )  # fmt: skip
    heads = ("setting", "seed", "epochs", "modelled ms", "lowest loss", "accuracy", "levels")
    lines += [*table(heads, rows), "", f"`{found['command']}`; {found['machine']}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder in which CIFAR-10 lies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--images", type=int, default=500)
    wanted = parser.parse_args()
    found = kept(NAME)
    if (found.get("images"), found.get("epochs")) != (wanted.images, wanted.epochs):
        found = {"images": wanted.images, "epochs": wanted.epochs, "runs": {}}
    keep_part = {"train": wanted.images, "validation": 500, "test": 500}
    data = load_dataset({"name": "cifar10", "keep": keep_part}, wanted.data)
    for seed in wanted.seeds:
        runs = found["runs"].setdefault(str(seed), {})
        for name in ("muppet", *SETTINGS):
            if name not in runs:
                runs[name] = run(data, name, seed, wanted.epochs)
                print(
                    seed,
                    name,
                    runs[name]["accuracy"],
                    list(dict.fromkeys(runs[name]["levels"])),
                    flush=True,
                )
                typed = command({str(wanted.data): "FOLDER"})
                keep(NAME, found | {"command": typed, "machine": machine("torch")}, page)


if __name__ == "__main__":
    main()
