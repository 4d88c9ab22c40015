# SPDX-License-Identifier: Apache-2.0
"""SkyNet's group-based particle swarm against chance and NSGA-II, at the same budget.

    python benchmarks/search.py --seeds 0 1 2                       # drawn shapes, 32 x 32
    python benchmarks/search.py --recipe my-detector --set data.path=DATA/raccoon-detection.zip

Every candidate is a recipe with another network: time by the folding search for its target,
accuracy on validation images after a short training. All strategies and seeds share one folder of
candidates, so that what is measured once is not measured again; stopped, the program goes on from
there. The measure is the hypervolume of the front: the share of the area above accuracy 0 and up to
the slowest candidate of all. The most accurate network of all that takes ``--target-ms`` or less is
then trained in few bits, lowered, mapped and simulated: predicted cycles against those of the RTL.
``--against 0 1 2``: it and SkyNet itself, as wide as fits into the same share of the device and
takes no more cycles an image, are trained with these seeds in the same way, and compared on the
test images.
``--board ulx3s --device ecp5-85k``: the chosen network, folded as it was for the search, becomes a
bitstream for that board: cycles simulated again, Fmax behind place and route, images a second.
``--write`` keeps it all in docs/results.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from results import command, keep, machine, table

from bitwright.base.errors import TargetError
from bitwright.build.implement import RESULT, read_result
from bitwright.papers.skynet.search.measure import Bench, recipe_for
from bitwright.papers.skynet.search.run import volume
from bitwright.papers.skynet.search.strategies import STRATEGIES, Trial, best_of, nearest_to
from bitwright.papers.skynet.search.swarm import Bounds, Fitness, Settings
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import Recipe, load_recipe
from bitwright.pipeline.steps.map import FOLDING
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.preflight import dry_run
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult, SimulateResult
from bitwright.pipeline.steps.workspace import Workspace

HEADS = ("strategy", "hypervolume", "candidates a seed", "most accurate on its front")
_PARTS = 32  # of SkyNet's width, in which it is scaled
#: As fast as possible within a share of the device: then networks differ in their time.
CHANGES = ("hardware.target_fps=null", "hardware.fill=0.5", "task.options={anchors: 2}")


def recipe_of(args: argparse.Namespace) -> Recipe:
    return load_recipe(args.recipe, [*CHANGES, *args.set])


def searched(args: argparse.Namespace) -> dict[str, dict[int, tuple[Trial, ...]]]:
    """By strategy and seed every candidate."""
    bench = Bench(
        recipe_of(args),
        args.out / "candidates",
        workers=args.workers,
        threads=1,
    )
    epochs = tuple(int(part) for part in args.epochs.split(","))
    found: dict[str, dict[int, tuple[Trial, ...]]] = {}
    for seed in args.seeds:
        settings = Settings(
            tuple(args.bundles),
            args.networks,
            epochs,
            Bounds(args.repeats, args.pools, args.least, args.most),
            Fitness(args.alpha, args.target_ms),
            seed,
        )
        for name in args.strategies:
            found.setdefault(name, {})[seed] = STRATEGIES[name](settings, bench)
            print(f"{name}, seed {seed}: {len(found[name][seed])} candidates", flush=True)
    return found


def summary(found: dict[str, dict[int, tuple[Trial, ...]]]) -> dict[str, Any]:
    every = [t for seeds in found.values() for trials in seeds.values() for t in trials]
    slowest = max(t.measured.time_ms or 0.0 for t in every)
    rows = {}
    for name, seeds in found.items():
        volumes = [volume(trials, slowest) for trials in seeds.values()]
        error = float(np.std(volumes, ddof=1) / len(volumes) ** 0.5) if len(volumes) > 1 else None
        rows[name] = {
            "volumes": volumes,
            "mean": float(np.mean(volumes)),
            "error": error,
            "candidates": [len(trials) for trials in seeds.values()],
            "best": [
                [t.candidate.name, t.measured.time_ms, t.measured.accuracy]
                for t in best_of([t for trials in seeds.values() for t in trials])
            ],
        }
    return {"slowest_ms": slowest, "rows": rows}


def proven(args: argparse.Namespace, chosen: Trial, *, meets: bool) -> dict[str, Any]:
    """The most accurate network that meets the target, down to the simulated RTL."""
    recipe = recipe_for(recipe_of(args), chosen.candidate)
    run = args.out / "chosen"
    Pipeline(recipe, run).build("simulate")
    proof = load_result(SimulateResult, run / step_folder("simulate"))
    levels = {step: metric_of(run, step) for step in ("train", "lower", "simulate")}
    return {
        "candidate": chosen.candidate.name,
        "target_ms": args.target_ms,
        "meets": meets,
        "searched_ms": chosen.measured.time_ms,
        "predicted": proof.predicted_interval,
        "simulated": proof.interval,
        "compared": proof.compared_values,
        "differences": proof.differences,
        "levels": levels,
    }


def on_board(args: argparse.Namespace, chosen: Trial) -> dict[str, Any]:
    """The bitstream of the chosen network, folded as `proven` left it, for a board."""
    run = args.out / "chosen"
    folding = args.out / FOLDING
    folding.write_bytes((run / step_folder("map") / FOLDING).read_bytes())
    recipe = recipe_for(recipe_of(args), chosen.candidate)
    hardware = recipe.hardware.model_copy(
        update={"target": args.device, "fill": None, "folding_config_file": folding}
    )
    implement = recipe.implement.model_copy(update={"board": args.board})
    recipe = recipe.model_copy(update={"hardware": hardware, "implement": implement})
    Pipeline(recipe, run).build("implement")
    proof = load_result(SimulateResult, run / step_folder("simulate"))
    result = read_result(run / step_folder("implement") / RESULT)
    clock = result.bitstream_clock_mhz
    return {
        "board": args.board,
        "device": args.device,
        "predicted": proof.predicted_interval,
        "simulated": proof.interval,
        "compared": proof.compared_values,
        "differences": proof.differences,
        "figures": {name: float(figure.value) for name, figure in result.figures.items()},
        "share": result.figures["lut"].value / result.capacity.lut,
        "asked_mhz": result.clock_mhz,
        "clock_mhz": clock,
        "images_a_second": clock and 1e6 * clock / proof.interval,
        "tools": sorted(each.tool for each in result.runs.values()),
    }


def against(args: argparse.Namespace, chosen: Trial) -> dict[str, Any]:
    """SkyNet at the cycles of the network that was found: test metric, float and in integers."""
    recipe = recipe_of(args)
    found = recipe_for(recipe, chosen.candidate)
    limit, _ = cycles_of(found)
    fits, wider = 0, ""  # in parts of the published width; why it is no wider
    for parts in range(1, _PARTS + 1):
        count, reason = cycles_of(scaled_skynet(recipe, parts / _PARTS))
        if reason or count > limit:
            wider = reason or f"takes {count} cycles"
            break
        fits = parts
    if not fits:
        return {}
    skynet = scaled_skynet(recipe, fits / _PARTS)
    (cycles, _), width = cycles_of(skynet), fits / _PARTS
    rows: dict[str, Any] = {}
    for name, each, count in (("found", found, limit), ("skynet", skynet, cycles)):
        levels: dict[str, list[float]] = {"train": [], "lower": []}
        for seed in args.against:
            training = each.train.model_copy(
                update={"float_": each.train.float_.model_copy(update={"seed": seed})}
            )
            run = args.out / f"against-{name}-{seed}"
            Pipeline(each.model_copy(update={"train": training, "seed": seed}), run).build("lower")
            for step, values in levels.items():
                values.append(metric_of(run, step))
        rows[name] = {"cycles": count, "levels": levels}
    next_ = {"width": (fits + 1) / _PARTS, "reason": wider}
    return {"width": width, "wider": next_, "seeds": args.against, "rows": rows}


def scaled_skynet(recipe: Recipe, width: float) -> Recipe:
    options = {"width": width, "scratch": True}
    model = recipe.model.model_copy(update={"name": "skynet", "options": options, "weights": None})
    return recipe.model_copy(update={"model": model})


def cycles_of(recipe: Recipe) -> tuple[int, str]:
    """Cycles between two images as mapped for its target, or why it does not fit."""
    try:
        mapped = dry_run(Workspace(recipe))
    except TargetError as error:
        return 0, f"does not fit: {error.message}"
    assert isinstance(mapped, MapResult)
    return mapped.interval, ""


def metric_of(run: Path, step: str) -> float:
    """The first metric of a step of a run, on test images."""
    result = json.loads((run / step_folder(step) / "result.json").read_text())
    return float(next(iter(result["metrics"].values()))["value"])


def page(found: dict[str, Any]) -> str:
    rows = []
    for name, row in found["rows"].items():
        error = "" if row["error"] is None else f" ± {row['error']:.4f}"
        best, time, accuracy = row["best"][-1]
        counts = ", ".join(map(str, row["candidates"]))
        cells = (f"{row['mean']:.4f}{error}", counts, f"{best}: {accuracy:.3f}, {time:.3g} ms")
        rows.append((name, *cells))
    lines = [
        "# Searching a detector: swarm, chance, NSGA-II",
        "",
        f"Hypervolume of the front up to {found['slowest_ms']:.3g} ms, as a share, with its",
        "standard error over seeds; by `benchmarks/search.py`.",
        "",
        *table(HEADS, rows),
    ]
    if found["chosen"]:
        chosen = found["chosen"]
        float_, integer, rtl = (chosen["levels"][step] for step in ("train", "lower", "simulate"))
        which = chosen["candidate"] + ("" if chosen["meets"] else ", the nearest")
        lines += [
            "",
            f"Chosen for {chosen['target_ms']:g} ms or less: {which}, predicted",
            f"{chosen['searched_ms']:.3g} ms. Trained as the recipe says: {float_:.3f} in floating",
            f"point, {integer:.3f} in integers, {rtl:.3f} in RTL, on the images simulated.",
            f"{chosen['predicted']} cycles an image predicted, {chosen['simulated']} simulated;",
            f"{chosen['compared']} values compared, {chosen['differences']} differ.",
        ]
    if found.get("board"):
        lines += placed(found["board"], found["chosen"]["target_ms"])
    if found.get("against"):
        lines += compared(found["against"])
    lines += ["", f"* `{found['command']}`; {found['machine']}"]
    return "\n".join(lines) + "\n"


def placed(found: dict[str, Any], target_ms: float) -> list[str]:
    """Lines of the bitstream."""
    figures = found["figures"]
    heads = ("device", "LUT", "of the device", "FF", "block RAMs", "DSP", "Fmax, MHz", "cycles")
    cells = (
        f"{found['device']}, {found['board']}",
        f"{figures['lut']:,.0f}",
        f"{found['share']:.1%}",
        f"{figures['ff']:,.0f}",
        f"{figures['bram']:g}",
        f"{figures['dsp']:g}",
        f"{figures['fmax_mhz']:.1f}",
        f"{found['predicted']} predicted, {found['simulated']} simulated",
    )
    said = [
        "",
        "Its bitstream, folded as it was for the search, in the serial shell"
        f" ({', '.join(found['tools'])}):",
        "",
        *table(heads, [cells]),
        "",
    ]
    if found["clock_mhz"] is None:
        return [*said, f"There is none: {found['asked_mhz']:g} MHz were asked and not reached."]
    needed, rate = 1000.0 / target_ms, found["images_a_second"]
    verb = "holds" if rate >= needed else "does not hold"
    return [
        *said,
        f"At the {found['clock_mhz']:g} MHz of the bitstream ({found['asked_mhz']:g} asked) it",
        f"takes {rate:,.0f} images a second, and so {verb} the {needed:,.0f} that were asked for;",
        f"{found['compared']} values compared with its RTL, {found['differences']} differ.",
    ]


def compared(found: dict[str, Any]) -> list[str]:
    """Lines of the comparison with SkyNet."""
    names = {"found": "the network that was found", "skynet": f"SkyNet, {found['width']:g} wide"}
    rows = []
    for key, row in found["rows"].items():
        cells = [names[key], str(row["cycles"])]
        for values in row["levels"].values():
            error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
            cells.append(f"{np.mean(values):.3f} ± {error:.3f}")
        rows.append(cells)
    heads = ("network", "cycles an image", "float", "integers")
    seeds = ", ".join(map(str, found["seeds"]))
    return [
        "",
        "Against SkyNet, as wide as fits into the same share of the device and takes no more",
        f"cycles, both trained as the recipe says, seeds {seeds}, test images. The next wider one",
        f"({found['wider']['width']:g}) {found['wider']['reason']}.",
        "",
        *table(heads, rows),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="shapes-boxes-w4a4")
    parser.add_argument("--set", action="append", default=[], help="changes of the recipe")
    parser.add_argument("--out", type=Path, default=Path("runs") / "search")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--bundles", nargs="+", default=["dw3-pw", "conv3", "pw-dw3"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", type=int, default=4, help="a group")
    parser.add_argument("--epochs", default="1,2,3,4", help="of fast training, an iteration")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--pools", type=int, default=3)
    parser.add_argument("--least", type=int, default=4)
    parser.add_argument("--most", type=int, default=48)
    parser.add_argument("--alpha", type=float, default=-1.0, help="accuracy by millisecond")
    parser.add_argument("--target-ms", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--against", type=int, nargs="*", default=[], help="seeds of training")
    parser.add_argument("--board", help="for which the chosen network becomes a bitstream")
    parser.add_argument("--device", default="ecp5-85k", help="of that board")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    trials = searched(args)
    found = summary(trials)
    print(json.dumps(found, indent=1), flush=True)
    every = [t for seeds in trials.values() for each in seeds.values() for t in each]
    chosen, meets = nearest_to(every, args.target_ms)
    found["chosen"] = {} if chosen is None else proven(args, chosen, meets=meets)
    found["board"] = on_board(args, chosen) if chosen and args.board else {}
    found["against"] = against(args, chosen) if chosen and args.against else {}
    found["command"] = command({str(args.out): "OUT"})
    found["machine"] = machine("torch")
    print(json.dumps(found, indent=1))
    if args.write:
        keep("search", found, page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
