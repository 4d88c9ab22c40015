# SPDX-License-Identifier: Apache-2.0
"""The model of Fmax before place and route: its points, its fit, and its errors.

    python benchmarks/fmax.py
    python benchmarks/fmax.py --refit     # to the tables as they are now

Fits the lines of `bitwright.build.fmax` to the points of docs/results/fmax.json, one a design,
device and way (the median where it was placed with several seeds or for several boards), and
predicts every design with the coefficients of the others: no point of the same network and folding
takes part. Then the placed designs as the tables of docs/results have them today (clock.json,
placed.json, recipes.json, boards.json, parallel_windows.md's and residual_network.md's in `MORE`):
the fit has those from which it was last made (``--refit``). Writes src/bitwright/build/fmax.json
and docs/results/fmax.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from math import exp
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.placed import DESIGNS

from bitwright.build.fmax import GRADE, period_of, terms
from bitwright.build.target import load_target
from bitwright.hw import MapOptions
from bitwright.hw.reads import Reads
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PAGE = RESULTS / "fmax.md"
TABLE = RESULTS.parents[1] / "src" / "bitwright" / "build" / "fmax.json"
FAMILY = "ecp5"
#: Blocks from which on a design's products are its slowest path.
MANY = 8


@dataclass(frozen=True)
class Point:
    """A placed design.

    Attributes:
        design: network and folding: what is left out together.
        device: with its speed grade.
        lut: packed, without the shell's.
        fmax: MHz, of every placement.
        source: page of docs/results.
        adders: between two registers, which follow from the clock that the recipe asks for.
        dsp: blocks.
    """

    design: str
    device: str
    speed: str
    shell: bool
    lut: float
    fmax: tuple[float, ...]
    source: str
    adders: int = 1
    reads: Reads = field(default_factory=Reads)
    dsp: int = 0

    @property
    def period(self) -> float:
        """Nanoseconds, of the middle placement."""
        return 1000.0 / median(self.fmax)

    @property
    def terms(self) -> dict[str, float]:
        return terms(
            self.lut, adders=self.adders, shell=self.shell, speed=self.speed, reads=self.reads
        )


#: Designs that stand on a page and in no table of numbers.
MORE = (
    Point(
        "digits, 100 cycles",
        "ecp5-45k",
        "6",
        True,
        12_443,
        (151.3,),
        "parallel_windows",
        reads=Reads(48),
    ),
    Point(
        "residual network",
        "ecp5-85k",
        "6",
        True,
        23_160,
        (150.8,),
        "residual_network",
        reads=Reads(32),
        dsp=3,
    ),
)


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def adders_of(recipe: str) -> int:
    """Adders in a line of a design as a recipe asks for it."""
    return MapOptions(FAMILY, clock_mhz=load_recipe(recipe).hardware.clock_mhz).adders


def shell_luts() -> float:
    """LUTs of the serial shell: of the designs that were placed with and without it."""
    rows = [row for row in read("clock") if row["label"] == "now"]
    alone = {row["design"]: row["lut"] for row in rows if row["way"] == "out of context"}
    inside = {row["design"]: row["lut"] for row in rows if row["way"] == "in its shell"}
    return mean(inside[design] - alone[design] for design in inside if design in alone)


def points() -> list[Point]:
    """What the coefficients are fitted to: docs/results/fmax.json."""
    rows = read("fmax")
    return [
        Point(**{**row, "fmax": tuple(row["fmax"]), "reads": Reads(**row["reads"])}) for row in rows
    ]


def placed() -> list[Point]:
    """Every placed design of today's hardware, by the tables of docs/results."""
    shell = shell_luts()
    found = [
        Point(
            f"{row['design']}, {row['interval']:,} cycles",
            row["target"],
            load_target(row["target"]).speed,
            inside := row["way"] == "in its shell",
            row["lut"] - inside * shell,
            tuple(row["fmax_mhz"].values()),
            "clock",
            reads=Reads(**row["reads"]),
            dsp=row["dsp"],
        )
        for row in read("clock")
        if row["label"] == "now"
    ]
    for row in read("placed").values():
        if row["fmax_mhz"]:
            speed, fmax = load_target(row["target"]).speed, tuple(row["fmax_mhz"].values())
            name = f"{row['design']}, {row['interval']:,} cycles"
            adders = adders_of(DESIGNS[row["design"]].recipe)
            lut = row["lut"]
            reads = Reads(**row["reads"])
            device, dsp = row["target"], row["dsp"]
            found.append(Point(name, device, speed, False, lut, fmax, "placed", adders, reads, dsp))
    return found + _of_boards(shell) + _of_recipes(shell) + [_less(one, shell) for one in MORE]


def _less(point: Point, shell: float) -> Point:
    """The same without the LUTs of its shell."""
    return Point(**{**vars(point), "lut": point.lut - point.shell * shell})


def _of_boards(shell: float) -> list[Point]:
    """Boards of one grade are placements of one design, `digits` of the recipes: the model knows
    no devices.
    """
    (recipe,) = (run for run in read("recipes")["rows"] if run["recipe"] == "digits")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read("boards"):
        if load_target(row["target"]).family == FAMILY:
            groups.setdefault(row["part"].split("-")[2][0], []).append(row)
    return [
        Point(
            "digits, 512 cycles",
            "boards",
            grade,
            True,
            median(row["lut_cells"] for row in rows) - shell,
            tuple(row["figures"]["fmax_mhz"] for row in rows),
            "boards",
            reads=Reads(**recipe["reads"]),
        )
        for grade, rows in sorted(groups.items())
    ]


def _of_recipes(shell: float) -> list[Point]:
    found = []
    for run in read("recipes")["rows"]:
        rows = {row["label"]: row["figure"] for row in run["rows"]}
        fmax, lut = rows.get("Fmax"), rows.get("LUT")
        if fmax is None or lut is None or fmax["source"] != "place-and-route":
            continue
        if run["recipe"] == "digits":  # the boards have this very placement
            continue
        cycles = next(v["value"] for k, v in rows.items() if k.startswith("cycles"))
        name = f"{run['recipe']}, {cycles:,.0f} cycles"
        less = lut["value"] - shell
        adders = adders_of(run["recipe"])
        clock, reads = (fmax["value"],), Reads(**run["reads"])
        found.append(Point(name, "ecp5-45k", "6", True, less, clock, "recipes", adders, reads))
    return found


def fit(known: Sequence[Point]) -> dict[str, Any]:
    """Least squares of the logarithm of the period, where products in DSP blocks are few; of the
    grades the first is the others' zero. What no point has is in no line. And of the period where
    they are many.
    """
    few = [point for point in known if point.dsp < MANY]
    names = sorted({name for point in few for name, value in point.terms.items() if value})
    grades = [name for name in names if name.startswith(GRADE)]
    free = [name for name in names if name not in grades[:1]]
    rows = np.array([[point.terms.get(name, 0.0) for name in free] for point in few])
    line = np.linalg.lstsq(rows, np.log([point.period for point in few]), rcond=None)[0]
    many = [point for point in known if point.dsp >= MANY]
    found = dict.fromkeys(grades[:1], 0.0) | dict(zip(free, line.tolist(), strict=True))
    periods = [p.period / exp(found.get(f"{GRADE}{p.speed}", 0.0)) for p in many]
    each, start = np.polyfit([p.dsp for p in many], periods, 1)
    return {
        "line": found,
        "dsp": {"start": float(start), "each": float(each)},
    }


def reach(known: Sequence[Point]) -> dict[str, Any]:
    """How far the points go, beyond which nothing is known of an error: grades that two designs
    were placed in, and the designs that are smaller than no other in every way.
    """
    designs: dict[str, set[str]] = {}
    for point in known:
        designs.setdefault(point.speed, set()).add(point.design)
    grades = sorted(grade for grade, names in designs.items() if len(names) > 1)
    sizes = [
        {
            "shell": p.shell,
            "lut": round(p.lut),
            "adders": p.adders,
            "dsp": p.dsp,
        }
        for p in known
        if p.speed in grades
    ]
    largest = [
        one
        for one in sizes
        if not any(
            other["shell"] == one["shell"]
            and other != one
            and all(other[name] >= one[name] for name in one)
            for other in sizes
        )
    ]
    words = max(p.reads.words for p in known)
    return {"grades": grades, "words": words, "placed": largest}


def predicted(lines: dict[str, Any], point: Point) -> float | None:
    """MHz; None where it has what no point of the line has."""
    found = {name: value for name, value in point.terms.items() if value}
    if any(name not in lines["line"] for name in found):
        return None
    return 1000.0 / period_of(lines, found, point.dsp)


def error_of(point: Point, said: float) -> float:
    return said / median(point.fmax) - 1


def left_out(known: Sequence[Point]) -> list[float | None]:
    """What each design is predicted as by the others; of a grade that one design alone was placed
    in, by that design's other devices.
    """
    said = []
    for point in known:
        rest = [p for p in known if p.design != point.design]
        if not any(p.speed == point.speed for p in rest):
            rest = [p for p in known if p is not point]
        said.append(predicted(fit(rest), point))
    return said


def since(known: Sequence[Point]) -> list[tuple[Point, float]]:
    """Placements that stand in the tables today, and what the other designs of the fit say."""
    found = []
    for point in placed():
        mhz = predicted(fit([p for p in known if p.design != point.design]), point)
        if mhz is not None:
            found.append((point, mhz))
    return found


def since_lines(known: Sequence[Point]) -> list[str]:
    """What is said of placements that the fit does not have."""
    found = since(known)
    errors = [abs(error_of(point, mhz)) for point, mhz in found]
    far = reach(known)["grades"]
    spread = max(max(p.fmax) / min(p.fmax) - 1 for p, _ in found)
    lines = [
        "The tables of docs/results as they are now, every placement; each design is predicted by",
        "the other designs of the fit alone:",
        "",
        "| design | in its shell | LUT | Fmax of all placements, MHz | predicted | error | to the "
        "nearest |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for point, mhz in found:
        seeds = sorted(point.fmax)
        inside = min(max(mhz, seeds[0]), seeds[-1])
        cells = [
            f"{point.design}, grade {point.speed}",
            "yes" if point.shell else "no",
            f"{point.lut:,.0f}",
            ", ".join(f"{each:.1f}" for each in seeds),
            f"{mhz:.1f}",
            f"{error_of(point, mhz):+.1%}",
            f"{mhz / inside - 1:+.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        f"Mean {mean(errors):.1%}, worst {max(errors):.1%}: `bitwright` says this mean with",
        f"a prediction. Placements of one design differ by up to {spread:.0%} with the seed.",
        "",
        "Of a design that is larger in some way (LUTs, adders, DSP blocks; in its shell or not)",
        "than each of these, with a deeper LUT RAM, and in another grade than "
        f"{', '.join(far)}, no error",
        "is known and none is said. Whole SkyNet lies there (207 of 208 block RAMs of an",
        "ECP5-85; it is no point): 160 MHz would be predicted, and [105.3](skynet_hardware.md)",
        "were found.",
        "",
    ]


def page(known: Sequence[Point], said: Sequence[float | None], lines_: dict[str, Any]) -> str:
    errors = [abs(error_of(p, s)) for p, s in zip(known, said, strict=True) if s is not None]
    once = [abs(error_of(p, predicted(lines_, p) or 0)) for p in known]
    lines = [
        "# Fmax, predicted before place and route",
        "",
        "Placed designs for ECP5, and what the model (`bitwright.build.fmax`) says of each with",
        "the coefficients of the *other* designs: a line through the logarithm of the LUTs and the",
        "adders between two registers (3 of a design for 50 MHz) and the levels of its deepest",
        "LUT RAM (of more than 32 words), a step for the serial shell, one for the speed grade.",
        "With DSP blocks, whose products have no register at their output, the period is at least",
        f"a line through their number, fitted to designs with {MANY} and more. LUTs are packed",
        "ones without the shell's. A dash: what it has, no other design has.",
        "",
        "| design | device | speed | in its shell | adders | DSP | words of LUT RAM | LUT "
        "| placements | Fmax, MHz | predicted by the others | error | from |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for point, mhz in zip(known, said, strict=True):
        shown = ["-", "-"] if mhz is None else [f"{mhz:.1f}", f"{error_of(point, mhz):+.1%}"]
        cells = [
            point.design,
            point.device,
            point.speed,
            "yes" if point.shell else "no",
            str(point.adders),
            str(point.dsp),
            str(point.reads.words),
        ]
        cells += [f"{point.lut:,.0f}", str(len(point.fmax)), f"{median(point.fmax):.1f}", *shown]
        lines.append("| " + " | ".join([*cells, f"[{point.source}]({point.source}.md)"]) + " |")
    factors = {name: exp(value) for name, value in lines_["line"].items()}
    products = lines_["dsp"]
    lines += [
        "",
        f"Error of a design that the fit has not seen: mean {mean(errors):.1%}, worst "
        f"{max(errors):.1%}; of all with the same coefficients: mean {mean(once):.1%}, worst "
        f"{max(once):.1%}.",
        "",
        f"The period grows by {factors['doublings'] - 1:.1%} with each doubling of the LUTs, by "
        f"{factors['shell'] - 1:.1%} with the shell, by {factors['adders'] - 1:.1%} with each more "
        "adder, by "
        f"{factors['levels'] - 1:.1%} with each doubling of a LUT RAM beyond 32 words; in grade 8 "
        "it is "
        f"{factors.get('grade 8', 1.0):.2f} of that in grade 6. Products in DSP blocks take "
        f"{products['start']:.1f} ns, and {products['each']:.3f} more for each block.",
        "",
        *since_lines(known),
        f"`python benchmarks/fmax.py`, {date.today().isoformat()}, on {cpu_name()}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--refit", action="store_true", help="to the tables as they are now")
    if parser.parse_args().refit:
        rows = [{**asdict(point), "lut": round(point.lut)} for point in placed()]
        (RESULTS / "fmax.json").write_text(json.dumps(rows, indent=1) + "\n")
    known = points()
    said, lines = left_out(known), fit(known)
    errors = [abs(error_of(p, s)) for p, s in zip(known, said, strict=True) if s is not None]
    table = {
        FAMILY: {
            **{
                part: {name: round(value, 4) for name, value in found.items()}
                for part, found in lines.items()
            },
            "error": {"mean": round(mean(errors), 4), "worst": round(max(errors), 4)},
            "since": round(mean(abs(error_of(p, mhz)) for p, mhz in since(known)), 4),
            **reach(known),
            "smallest_lut": round(min(point.lut for point in known)),
            "points": len(known),
            "made": f"python benchmarks/fmax.py, {date.today().isoformat()}",
        }
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.write_text(page(known, said, lines))
    print(f"{len(known)} points, mean {mean(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
