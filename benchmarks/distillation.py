# SPDX-License-Identifier: Apache-2.0
"""What distillation is worth to perceptrons on MNIST: studies over widths, and a sweep of alpha.

    python benchmarks/distillation.py --runs RUNS             # hours on a CPU; goes on where it was
    python benchmarks/distillation.py --runs RUNS --collect   # the pages from what is there

The first form gives the commands of the page, which may as well be given by hand. Test images are
used once for every network of the tables and for no choice: settings were chosen on validation
images, 10 % of the training images. Every seed has its own cut of them, its own first weights and
order of images. Writes docs/results/distillation.json and distillation.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitwright.base.figures import Measured
from bitwright.base.files import atomic_write
from bitwright.base.statistics import mean_of
from bitwright.explore.study_jobs import ARMS
from bitwright.pipeline.api import versions
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.names import step_folder
from bitwright.report.table import Column, Kind, Table, Value

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TEACHER, STUDY, SWEEP = "mnist-kl-mlp-teacher", "mnist-kl-mlp-qkd-w8a8", "mnist-dnn30-kd-w4a4"
WIDTHS = (8, 4, 2, 1)
_PEER = "train.quantized.co_study.peer.lr=0.0001"
#: Folder of a study -> what is special about its teachers, and what the command line says of it.
STUDIES = {
    "shared": (
        "One teacher for all seeds, trained for 40 epochs",
        ["--set", "teacher={{model: {{name: kl_mlp_teacher, weights: {teacher}}}}}"],
    ),
    "study": (
        "A teacher for every seed, trained for 15 epochs",
        ["--set", _PEER],
    ),
}
ALPHAS = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9)
SEEDS = 5
SHOWN = ("baseline", "ptq", "ss", "ss_ts", "qkd")
#: Points that QKD may lie below the float student at 4, 2 and 1 bit.
ALLOWED = {4: 0.2, 2: 0.6, 1: 1.5}
Arms = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Study:
    """The finished jobs of one study.

    Attributes:
        title: of its section.
        arms: width -> seed -> arm -> accuracies (shares) and epochs.
        teachers: seed -> test accuracy of the teacher.
    """

    title: str
    arms: Mapping[int, Mapping[int, Arms]]
    teachers: Mapping[int, float]


@dataclass(frozen=True)
class Found:
    """What the runs hold.

    Attributes:
        studies: folder -> its jobs.
        alphas: alpha -> seed -> accuracies of the small student.
        tutors: seed -> test accuracy of the sweep's teacher.
    """

    studies: Mapping[str, Study]
    alphas: Mapping[float, Mapping[int, dict[str, float]]]
    tutors: Mapping[int, float]


def commands(runs: Path, seeds: int) -> list[list[str]]:
    """What is to be done, in order."""
    teacher = runs / "teacher"
    weights = (teacher / step_folder("train") / "weights.pt").absolute()
    widths = ",".join(map(str, WIDTHS))
    wanted = [["train", TEACHER, "--run-dir", str(teacher)]]
    for name, (_, more) in STUDIES.items():
        told = [text.format(teacher=weights) for text in more]
        given = ["--seeds", str(seeds), "--bits", widths, *told, "--out", str(runs / name)]
        wanted.append(["study", STUDY, *given])
    over = [f"alpha={','.join(map(str, ALPHAS))}", f"seeds={seeds}"]
    wanted.append(["sweep", SWEEP, "--over", *over, "--until", "train", "--out", f"{runs}/dnn30"])
    return wanted


def run(runs: Path, seeds: int, workers: int) -> None:
    """Do what is not done yet."""
    for command in commands(runs, seeds):
        own = [] if command[0] == "train" else ["--workers", str(workers), "--threads", "1"]
        # Hours, and it may be stopped and started again at will: no timeout.
        subprocess.run([sys.executable, "-m", "bitwright", *command, *own], check=True)


def read_study(folder: Path, title: str) -> Study:
    """Read every finished job of a study."""
    arms: dict[int, dict[int, Arms]] = {}
    teachers = {}
    for seed, place in _seeds(folder):
        for width in WIDTHS:
            value = _value(place / f"w{width}a{width}")
            if value is not None:
                arms.setdefault(width, {})[seed] = value
        taught = _json(place / "float" / "run" / step_folder("teach") / "result.json")
        if taught is not None:
            teachers[seed] = taught["metrics"]["accuracy"]["value"]
    return Study(title, dict(sorted(arms.items(), reverse=True)), teachers)


def collect(runs: Path) -> Found:
    """Read every finished job."""
    studies = {name: read_study(runs / name, title) for name, (title, _) in STUDIES.items()}
    studies = {name: study for name, study in studies.items() if study.arms}
    alphas: dict[float, dict[int, dict[str, float]]] = {}
    tutors = {}
    for folder in sorted((runs / "dnn30" / "points").glob("*")):
        if _value(folder) is None:
            continue
        recipe = _json(folder / "job.json")["arguments"]["recipe"]  # type: ignore[index]
        trained = _json(folder / step_folder("train") / "result.json")
        taught = _json(folder / step_folder("teach") / "result.json")
        assert trained is not None
        assert taught is not None
        kept = trained["history"][trained["kept_epoch"] - 1]
        alpha, seed = recipe["train"]["float"]["distillation"]["alpha"], recipe["seed"]
        alphas.setdefault(alpha, {})[seed] = {
            "test": trained["metrics"]["accuracy"]["value"],
            "train": kept["train_accuracy"],
            "validation": kept["validation_accuracy"],
        }
        tutors[seed] = taught["metrics"]["accuracy"]["value"]
    return Found(studies, dict(sorted(alphas.items())), tutors)


def _seeds(folder: Path) -> list[tuple[int, Path]]:
    found = [(int(path.name.removeprefix("seed-")), path) for path in folder.glob("seed-*")]
    return sorted(found)


def _value(folder: Path) -> Any:
    found = _json(folder / "result.json")
    return None if found is None else found["value"]


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def arms_table(study: Study) -> Table:
    """A row for every width and arm: means over the seeds, differences seed by seed."""
    columns = (
        Column("width", "weights / activations"),
        Column("arm", "arm"),
        Column("epochs", "epochs", Kind.NUMBER, about="of training in few bits"),
        Column("seeds", "seeds", Kind.NUMBER),
        Column("train", "training images", Kind.SHARE),
        Column("test", "test images", Kind.SHARE),
        Column("float", "against float", Kind.POINTS, about="the same seed's float student"),
        Column("ptq", "against PTQ", Kind.POINTS, about="the same seed's calibrated network"),
        Column("each", "test, by seed"),
    )
    rows: list[dict[str, Value]] = []
    shown: list[Sequence[int]] = []
    for width, by_seed in study.arms.items():
        for arm in SHOWN:
            if arm == "baseline" and tuple(by_seed) in shown:
                continue  # the same networks at every width
            shown.append(tuple(by_seed))
            own = [value[arm] for value in by_seed.values()]
            row: dict[str, Value] = {
                "width": "float32" if arm == "baseline" else f"{width} / {width} bit",
                "arm": arm,
                "epochs": int(own[0]["epochs"]),
                "seeds": len(own),
                "train": mean_of([value["train"] for value in own]),
                "test": mean_of([value["test"] for value in own]),
                "each": ", ".join(f"{100 * value['test']:.2f}" for value in own),
            }
            for other, key in (("baseline", "float"), ("ptq", "ptq")):
                if arm not in ("baseline", other):
                    row[key] = difference(by_seed, arm, other)
            rows.append(row)
    notes = (
        "± is the standard error of the mean over seeds; differences are paired.",
        *(f"{arm}: {ARMS[arm]}." for arm in SHOWN),
    )
    return Table("", columns, tuple(rows), notes)


def difference(by_seed: Mapping[int, Arms], arm: str, other: str) -> Measured:
    """How much better one arm is on the test images, seed by seed."""
    return mean_of([value[arm]["test"] - value[other]["test"] for value in by_seed.values()])


def alpha_table(found: Found) -> Table:
    """A row for every alpha: means over the seeds, differences from labels alone."""
    columns = (
        Column(
            "alpha", "alpha", Kind.NUMBER, digits=1, about="share of the teacher; 0 is labels alone"
        ),
        Column("seeds", "seeds", Kind.NUMBER),
        Column("train", "training images", Kind.SHARE, about="while training, in the kept epoch"),
        Column("validation", "validation images", Kind.SHARE),
        Column("test", "test images", Kind.SHARE),
        Column("against", "against alpha 0", Kind.POINTS, about="the same seeds"),
        Column("each", "test, by seed"),
    )
    rows: list[dict[str, Value]] = []
    labels = found.alphas.get(0, {})
    for alpha, by_seed in found.alphas.items():
        own = by_seed.values()
        row: dict[str, Value] = {"alpha": alpha, "seeds": len(own)}
        for part in ("train", "validation", "test"):
            row[part] = mean_of([value[part] for value in own])
        row["each"] = ", ".join(f"{100 * value['test']:.2f}" for value in own)
        both = [seed for seed in by_seed if seed in labels]
        if alpha and both:
            row["against"] = mean_of([by_seed[s]["test"] - labels[s]["test"] for s in both])
        rows.append(row)
    return Table("", columns, tuple(rows))


def _study_targets(study: Study, row: Callable[[str, str, str, bool], None]) -> None:
    for width, by_seed in study.arms.items():
        what = f"{study.title}: QKD, {width} bit"
        over = 100 * difference(by_seed, "qkd", "baseline").value
        if width in ALLOWED:
            low = -ALLOWED[width]
            row(f"{what}, against float", f">= {low:+.1f} points", f"{over:+.2f}", over >= low)
        else:
            test = 100 * mean_of([value["qkd"]["test"] for value in by_seed.values()]).value
            gain = 100 * difference(by_seed, "qkd", "ptq").value
            row(what, ">= 98.70 %", f"{test:.2f} %", test >= 98.7)
            row(f"{what}, against PTQ", ">= +0.30 points", f"{gain:+.2f}", gain >= 0.3)


def targets_table(found: Found) -> Table:
    """What was asked for, and what was reached; the alpha is the best on validation images."""
    columns = (
        Column("what", "what"),
        Column("asked", "asked"),
        Column("reached", "reached"),
        Column("met", "met"),
    )
    rows: list[dict[str, Value]] = []

    def row(what: str, asked: str, reached: str, met: bool) -> None:
        rows.append({"what": what, "asked": asked, "reached": reached, "met": met})

    for study in found.studies.values():
        _study_targets(study, row)
    taught = {alpha: by for alpha, by in found.alphas.items() if alpha}
    if taught:

        def validated(alpha: float) -> float:
            return mean_of([value["validation"] for value in taught[alpha].values()]).value

        best = max(taught, key=validated)
        test = 100 * mean_of([value["test"] for value in taught[best].values()]).value
        row(f"DNN-30 from DNN-800, alpha {best:g}", ">= 98.00 %", f"{test:.2f} %", test >= 98.0)
    return Table("", columns, tuple(rows))


def page(found: Found, facts: Mapping[str, str]) -> str:
    """The results as Markdown."""
    lines = [
        "# Distillation: perceptrons on MNIST\n",
        "Test images are used once for every network of the tables: settings were chosen on "
        "validation images, 10 % of the training images. Every seed has its own cut of them, its "
        "own first weights and order of images. The shared teacher was trained longer after the "
        "other study's first test figures had been seen, and its co-study is slower; it is trained "
        "on seed 0's cut, so it knows validation images of the others, which choose the epoch.\n",
        "The teachers are trained as Hinton, Vinyals and Dean (2015, section 3) train theirs: on "
        "images moved by up to two pixels. No student sees a moved image in any arm, the float one "
        "included; what a student knows of them comes from its teacher's scores. A few-bit network "
        "is measured as frozen integers; its image keeps 8 bits.\n",
        targets_table(found).to_markdown(),
    ]
    lines += [
        "## 784-300-300-10 from 784-1200-1200-10\n",
        "The float student: 100 epochs, batch 64, SGD with Nesterov momentum 0.9 from 0.1, halved "
        "at 20, 40 and 60, weight decay 5e-4, no augmentation; the best epoch by validation.\n",
    ]
    for study in found.studies.values():
        own = [f"{100 * value:.2f}" for value in study.teachers.values()]
        shown = ", ".join(own if len(set(own)) > 1 else own[:1])
        lines += [
            f"### {study.title}\n",
            f"Teachers, test images, by seed: {shown} %.\n",
            arms_table(study).to_markdown(),
        ]
    if found.alphas:
        tutors = ", ".join(f"{100 * value:.2f}" for _, value in sorted(found.tutors.items()))
        lines += [
            "## 784-30-30-10 from 784-800-800-10: the weight of the teacher\n",
            f"Floating point, temperature 3. Teachers, test, by seed: {tutors} %.\n",
            alpha_table(found).to_markdown(),
        ]
    own = [shlex.join(["bitwright", *command]) for command in commands(Path("RUNS"), SEEDS)]
    here = f"{Path.cwd()}/"
    lines += ["## How\n", *(f"* {key}: {value}" for key, value in facts.items())]
    lines += [
        "\nIn full, by these commands; rows with fewer seeds, and widths or alphas that are not"
    ]
    lines += ["shown, are of commands that have not come to their end:"]
    lines += ["\n```", *(text.replace(here, "") for text in own), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--collect", action="store_true", help="train nothing")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=2, help="networks at a time")
    parser.add_argument("--source", default="", help="what the runs were made with, for the page")
    parser.add_argument("--no-write", action="store_true", help="print only")
    given = parser.parse_args()
    if not given.collect:
        run(given.runs, given.seeds, given.workers)
    found = collect(given.runs)
    if not found.studies and not found.alphas:
        sys.exit(f"{given.runs}: no finished run")
    facts = {
        "command": "`python benchmarks/distillation.py --runs RUNS`",
        "recipes": f"`{STUDY}`, `{SWEEP}`: every setting and number of epochs",
        "processor": cpu_name(),
        **{name: text for name, text in versions().items() if name in ("python", "torch")},
        "date": datetime.date.today().isoformat(),
    }
    if given.source:
        facts["source"] = given.source
    text = page(found, facts)
    print(text)
    if given.no_write:
        return
    record = {
        "facts": facts,
        "targets": targets_table(found).to_json(),
        "studies": {name: asdict(study) for name, study in found.studies.items()},
        "alphas": {str(alpha): by for alpha, by in found.alphas.items()},
        "tutors": found.tutors,
    }
    atomic_write(RESULTS / "distillation.json", json.dumps(record, indent=1) + "\n")
    atomic_write(RESULTS / "distillation.md", text)


if __name__ == "__main__":
    main()
