# SPDX-License-Identifier: Apache-2.0
"""Which outcomes of GM's experiments (Vink 2023, 6.4) hold on ResNet-20 with a part of CIFAR-10.

    python benchmarks/gm_outcomes.py [--data FOLDER] [--seeds 0 1] [--epochs 40] [--images 1000]
    python benchmarks/gm_outcomes.py --seeds 4 5 6 --settings best
    python benchmarks/gm_outcomes.py --page    # of the runs that are there

One run with MuPPET and one with each setting of GM that was tried there, all else alike; time is
that of the convolutions on a die of a U250 (`fpgpt-u250`). Two runs are compared by the times in
which each comes to a loss that both reach: ``gain`` is the time of the other by that of the first,
at the lowest such loss and as the mean along the way. The networks trained there are longer and
larger: this says whether an outcome is one of the method, not what GM brings. Runs in
docs/results/gm_outcomes.json are kept; an interrupted call goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, exp, log
from statistics import fmean, stdev
from typing import Any

from gm import trained
from results import command, keep, kept, machine, table
from scipy.stats import t
from torch import nn

from bitwright.data import load_dataset
from bitwright.data.dataset import DataSplits
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.ladder import parse_level
from bitwright.models import build_model
from bitwright.papers.fpga_training.fpgpt.costs import FpgptCosts
from bitwright.train import TrainConfig

NAME = "gm_outcomes"
MUPPET = {"resolution": 2, "patience": 2}
CLIMBS = [8, 12, 14, 16, "float32"]
BATCH = 50
TAIL = 2  # epochs in float32 at the end of every run
AUGMENTATION = {"shift": 4, "flip": True}  # without it so few images are learned by heart
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
_ON_THE_WAY = 40


def gain(runs: Runs, name: str, other: str) -> float:
    """Time of ``other`` by that of ``name`` to the lowest loss that both reach."""
    loss = max(lowest(runs, each) for each in (name, other))
    return time_to(runs[other], loss) / time_to(runs[name], loss)


def gain_on_the_way(runs: Runs, name: str, other: str) -> float:
    """The geometric mean of such gains over `_ON_THE_WAY` losses, from that of the first epoch to
    the lowest that both reach: one epoch by chance counts little."""
    pair = (name, other)
    high = min(runs[each]["losses"][0] for each in pair)
    low = max(lowest(runs, each) for each in pair)
    at = (high * (low / high) ** (k / _ON_THE_WAY) for k in range(1, _ON_THE_WAY + 1))
    # The last is the lowest itself, but for its last bits.
    logs = (
        log(time_to(runs[other], loss) / time_to(runs[name], loss))
        for loss in (max(each, low) for each in at)
    )
    return exp(fmean(logs))


def time_to(one: dict[str, Any], loss: float) -> float:
    times = accumulate(one["seconds"])
    return next(t for t, found in zip(times, one["losses"], strict=True) if found <= loss)


def lowest(runs: Runs, name: str) -> float:
    return float(min(runs[name]["losses"]))


def room(one: dict[str, Any], fastest: float) -> float:
    """What GM could gain over this run of MuPPET at the same losses: its time by that of as many
    epochs of so many seconds."""
    return float(sum(one["seconds"]) / (len(one["seconds"]) * fastest))


def fastest_epoch(images: int) -> float:
    """Seconds of an epoch whose products all run at the level that is fastest for them."""
    network = count_network(resnet(0), (3, 32, 32), BATCH)
    device = FpgptCosts()
    levels = [device.products(network, parse_level(each).name).products for each in LADDER]
    step = sum(min(part.cost.seconds for part in parts) for parts in zip(*levels, strict=True))
    return images // BATCH * step


@dataclass(frozen=True)
class Claim:
    """An outcome that is printed.

    Attributes:
        text: what it says.
        pair: runs whose ``figure`` is taken, the first by the second.
        holds: for such a figure.
        figure: of a seed's runs and the pair; None: the gains.
        what: the figure is.
    """

    text: str
    pair: tuple[str, str]
    holds: Callable[[float], bool]
    figure: Callable[[Runs, str, str], float] | None = None
    what: str = "gain"


def faster(name: str, other: str, text: str) -> Claim:
    return Claim(text, (name, other), lambda g: g > _FASTER)


def not_faster(name: str, other: str, text: str) -> Claim:
    return Claim(text, (name, other), lambda g: g <= _FASTER)


CLAIMS = (
    faster("eps 0.0005", "muppet", "eps 0.0005 is faster than MuPPET"),
    faster("eps 0.01", "muppet", "eps 0.01 is faster than MuPPET"),
    faster("best", "muppet", "eps 0.05 is faster than MuPPET"),
    faster("best", "eps 0.01", "eps 0.05 is faster than 0.01"),
    faster("best", "eps 0.0005", "eps 0.05 is faster than 0.0005"),
    Claim(
        "eps 0.05: accuracy comparable with MuPPET's (within 2 points)",
        ("best", "muppet"),
        lambda points: abs(points) <= 2,
        lambda runs, a, b: 100 * (runs[a]["accuracy"] - runs[b]["accuracy"]),
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
        ("eta 50", "muppet"),
        lambda ratio: ratio > 1.5,
        lambda runs, a, b: lowest(runs, a) / lowest(runs, b),
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


def verdicts(few: dict[str, Runs]) -> list[tuple[str, ...]]:
    """Of every claim: its figures by seed and what they say; of gains both."""
    rows = []
    for claim in CLAIMS:
        figures = (gain, gain_on_the_way) if claim.figure is None else (claim.figure,)
        row = [claim.text]
        for figure in figures:
            found = [figure(runs, *claim.pair) for runs in few.values()]
            held = sum(claim.holds(each) for each in found)
            word = {0: "not held", len(found): "held"}
            row += [
                ("" if claim.figure is None else f"{claim.what} ")
                + ", ".join(f"{each:.3f}" for each in found),
                word.get(held, f"undecided, {held} of {len(found)}"),
            ]
        rows.append((*row, *["-"] * (5 - len(row))))
    return rows


def resnet(seed: int) -> nn.Module:
    options = {"stem": "strided"}
    return build_model({"name": "resnet20", "options": options}, 10, (32, 32, 3), seed=seed)


def run(data: DataSplits, name: str, seed: int, epochs: int) -> dict[str, Any]:
    model = resnet(seed)
    gm = {"kind": "gm", **MUPPET, "eps_threshold": 0.05, "climbs": CLIMBS}
    policy = {"kind": "muppet", **MUPPET} if name == "muppet" else gm | SETTINGS[name]
    low: dict[str, Any] = {"policy": policy, "device": "fpgpt-u250", "float_epochs": TAIL}
    low |= {"lr_every": 2, "ladder": CLIMBS if name == "muppet" else LADDER}
    config = TrainConfig(
        epochs=epochs, batch_size=BATCH, lr=0.1, optimizer="sgd", momentum=0.9, threads=1,
        keep="last", seed=seed, augmentation=AUGMENTATION, low_precision=low,
    )  # fmt: skip
    return trained(model, data, config)


def alike(whole: dict[str, Runs]) -> list[str]:
    """Groups of settings that gave the same losses in all seeds."""
    groups: dict[str, list[str]] = {}
    for name in SETTINGS:
        groups.setdefault(str([runs[name]["losses"] for runs in whole.values()]), []).append(name)
    return [", ".join(names) for names in groups.values() if len(names) > 1]


def _bits(entry: tuple[str, float]) -> int:
    return parse_level(entry[0]).bits


def levels_of(one: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(one["levels"]))


def over_more(runs: dict[str, Runs], least: int) -> list[str]:
    """Of settings that ran with more seeds than all did: mean gains over MuPPET."""
    lines = []
    for name in SETTINGS:
        pairs = [in_few_bits(each) for each in runs.values() if {name, "muppet"} <= set(each)]
        if len(pairs) <= max(least, 2):
            continue
        said = []
        for what, figure in (("on the way", gain_on_the_way), ("at the lowest loss", gain)):
            logs = [log(figure(each, name, "muppet")) for each in pairs]
            middle = fmean(logs)
            wide = float(t.ppf(0.975, len(logs) - 1)) * stdev(logs) / len(logs) ** 0.5
            ends = f"{exp(middle - wide):.3f} to {exp(middle + wide):.3f}"
            said.append(f"{exp(middle):.3f} (95 %: {ends}) {what}")
        points = [100 * (each[name]["accuracy"] - each["muppet"]["accuracy"]) for each in pairs]
        lines += [
            f"`{name}` in {len(pairs)} seeds: gain over MuPPET {', '.join(said)}; accuracy "
            f"{fmean(points):+.1f} points (standard deviation {stdev(points):.1f}).",
            "",
        ]
    return lines


def page(found: dict[str, Any]) -> str:
    every = ("muppet", *SETTINGS)
    whole = {seed: runs for seed, runs in found["runs"].items() if set(every) <= set(runs)}
    lines = [
        "# GM on ResNet-20: which printed outcomes hold", "",
        f"By `benchmarks/gm_outcomes.py`: ResNet-20 behind a strided stem, {found['images']} "
        "images of CIFAR-10, moved by up to four pixels and mirrored, "
        f"{found['epochs']} epochs at most, batches of 50; MuPPET's resolution "
        "and patience 2. Modelled time: convolutions of all steps on FPGPT, a die of a U250 at 100 "
        "MHz. Gain: time of the second by that of the first to a training loss that both reach, at "
        f"the lowest such loss, and as the geometric mean over {_ON_THE_WAY} losses on the way "
        "there. Held or not: all seeds say so. Every run ends with "
        f"{found['float_epochs']} epochs in float32, which take 2.5 times as long: gains and "
        "losses are those of the epochs before them, accuracies those of the end. The document "
        "trains on all of CIFAR-100 and longer.",
        "",
    ]  # fmt: skip
    if len(whole) > 1:
        seeds = f"seeds {', '.join(whole)}"
        few = {seed: in_few_bits(runs) for seed, runs in whole.items()}
        heads = ("printed", f"at the lowest loss, {seeds}", "here", "on the way", "here")
        lines += [*table(heads, verdicts(few)), ""]
        times = {
            level: 1e3 * seconds
            for runs in whole.values()
            for level, seconds in zip(
                runs["muppet"]["levels"], runs["muppet"]["seconds"], strict=True
            )
        }
        rooms = ", ".join(
            f"{room(runs['muppet'], found['fastest_epoch']):.3f}" for runs in few.values()
        )
        faster = ", ".join(
            str(sum(gain_on_the_way(runs, name, "muppet") > _FASTER for name in SETTINGS))
            for runs in few.values()
        )
        spread = fmean(
            stdev(log(gain_on_the_way(runs, name, "muppet")) for runs in few.values())
            for name in SETTINGS
        )
        most = fmean(log(room(runs["muppet"], found["fastest_epoch"])) for runs in few.values())
        lines += [
            "An epoch takes, in modelled milliseconds: "
            f"{', '.join(f'{level} {ms:.0f}' for level, ms in sorted(times.items(), key=_bits))}. "
            "With every product at the level that is fastest for it it takes "
            f"{1e3 * found['fastest_epoch']:.0f}. So the most that any choice of levels could gain "
            f"over MuPPET in few bits, at the same losses, is {rooms} in {seeds}. Of the "
            f"{len(SETTINGS)} settings {faster} are faster than MuPPET on the way. "
            f"From seed to seed a gain over it varies by {100 * spread:.1f} % (standard deviation, "
            f"mean of the settings): to see the whole of that room takes some "
            f"{ceil((1.96 * spread / most) ** 2)} seeds, half of it four times as many. "
            f"Settings whose runs are the same, number for number: {'; '.join(alike(whole))}.",
            "",
        ]  # fmt: skip
    lines += over_more(found["runs"], len(whole))
    rows = (
        (
            name, seed, str(len(one["seconds"])), f"{1e3 * sum(one['seconds']):.1f}",
            f"{min(one['losses']):.4f}", str(one["accuracy"]), levels_of(one),
        )
        for seed, runs in found["runs"].items()
        for name, one in runs.items()
    )  # fmt: skip
    columns = ("setting", "seed", "epochs", "modelled ms", "lowest loss", "accuracy", "levels")
    lines += [*table(columns, rows), "", f"`{found['command']}`; {found['machine']}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="the page again, of gm_outcomes.json")
    parser.add_argument("--data", help="folder in which CIFAR-10 lies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--settings", nargs="+", choices=[*SETTINGS], default=[*SETTINGS])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--images", type=int, default=1000)
    wanted = parser.parse_args()
    found = kept(NAME)
    if wanted.page:
        keep(NAME, found | {"fastest_epoch": fastest_epoch(found["images"])}, page)
        return
    asked = {"images": wanted.images, "epochs": wanted.epochs, "augmentation": AUGMENTATION}
    asked |= {"float_epochs": TAIL}
    if asked != {name: found.get(name) for name in asked}:
        found = asked | {"fastest_epoch": fastest_epoch(wanted.images), "runs": {}}
    keep_part = {"train": wanted.images, "validation": 1000, "test": 1000}
    data = load_dataset({"name": "cifar10", "keep": keep_part}, wanted.data)
    for seed in wanted.seeds:
        runs = found["runs"].setdefault(str(seed), {})
        for name in ("muppet", *wanted.settings):
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
                if typed not in found.get("command", ""):
                    found["command"] = "`, `".join(filter(None, (found.get("command"), typed)))
                keep(NAME, found | {"machine": machine("torch")}, page)


if __name__ == "__main__":
    main()
