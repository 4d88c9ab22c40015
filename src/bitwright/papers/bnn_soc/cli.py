# SPDX-License-Identifier: Apache-2.0
"""`bitwright bnn` and `bitwright kpi`: their verbs and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli.options import Force, Json
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.papers.bnn_soc.model import Model
    from bitwright.papers.bnn_soc.settings import Settings

bnn = typer.Typer(
    name="bnn",
    help="Binarized networks as a thesis of 2018 trained and ran them on an ARM with an FPGA.",
    no_args_is_help=True,
)
Preset = Annotated[str, typer.Argument(metavar="PRESET", help="bnn-1h, bnn-2h, ann-1h or ann-2h.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with MNIST's or EMNIST's four IDX files."),
]
Cycles = Annotated[int, typer.Option("--cycles", min=1, help="Samples to train on.")]
Looks = Annotated[int, typer.Option("--looks", min=1, max=1000, help="Evaluations on the way.")]
HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out",
        min=0.0,
        max=0.9,
        help="Share of the training images to judge on instead of the test images.",
    ),
]
Threads = Annotated[int, typer.Option("--threads", min=1, max=64)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change an option: --set exaggeration=1000."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for what is made.")]


@bnn.command("train")
def train_verb(  # noqa: PLR0913, PLR0917
    preset: Preset,
    out: Out,
    data: Data = None,
    cycles: Cycles = 60_000,
    looks: Looks = 10,
    threads: Threads = 1,
    held_out: HeldOut = 0.0,
    assign: Sets = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one of the document's networks sample by sample, and keep it in a folder."""
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.course import load_samples, run_course
    from bitwright.papers.bnn_soc.run_folder import save_run
    from bitwright.papers.bnn_soc.tables import curves_table

    output = Output(json)
    settings = _settings(preset, assign)
    with held(out, force=force), output.progress() as progress:
        samples = load_samples(data, held_out=held_out)
        model, seen = run_course(
            settings, samples, cycles=cycles, looks=looks, threads=threads,
            seen=lambda look: progress("training", look.cycles, cycles),
        )  # fmt: skip
        save_run(out, model, seen, threads)
    table = curves_table({preset: seen})
    if not output.answered(table.to_json()):
        output.results(table)
        output.say(f"{seen[-1].seconds:.0f} s of training; the network is in {out}")


@bnn.command("ablate")
def ablate_verb(  # noqa: PLR0913, PLR0917
    out: Out,
    preset: Annotated[str, typer.Option("--preset", help="What all tricks are.")] = "bnn-1h",
    data: Data = None,
    cycles: Cycles = 60_000,
    looks: Looks = 6,
    threads: Threads = 1,
    held_out: HeldOut = 0.0,
    assign: Sets = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Of the tricks; may be given again.")
    ] = None,
    json: Json = False,
) -> None:
    """Train with each trick changed alone: which of them matters, as a table and curves."""
    from bitwright.base.errors import RecipeError
    from bitwright.base.files import atomic_write
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.course import TRICKS, load_samples, run_course
    from bitwright.papers.bnn_soc.tables import courses_table, curves, curves_table

    output = Output(json)
    unknown = set(only or ()) - set(TRICKS)
    if unknown:
        raise RecipeError(f"no trick {sorted(unknown)}", hint="one of " + ", ".join(TRICKS))
    base, samples = _settings(preset, assign), load_samples(data, held_out=held_out)
    found: dict[str, Any] = {}
    with held(out):
        for name, change in TRICKS.items():
            if only and name not in only:
                continue
            settings = base.changed(**change)
            with output.progress() as progress:
                _, found[name] = run_course(
                    settings, samples, cycles=cycles, looks=looks, threads=threads,
                    seen=lambda look, name=name: progress(name, look.cycles, cycles),
                )  # fmt: skip
        table = courses_table("Tricks", found)
        atomic_write(out / "tricks.md", table.to_markdown())
        atomic_write(out / "curves.csv", curves_table(found).to_csv())
        names = list(found)
        for first in range(0, len(names), 3):
            some = dict.fromkeys([names[0], *names[first : first + 3]])
            picture = curves("Accuracy by cycles", {name: found[name] for name in some})
            atomic_write(out / f"curves{first // 3}.svg", picture + "\n")
    if not output.answered(table.to_json()):
        output.results(table)


@bnn.command("shuffle")
def shuffle_verb(
    out: Out,
    data: Data = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=(1 << 63) - 1)] = 0,
    force: Force = False,
) -> None:
    """Write the data set with its training images in another order: train on it with
    `--set shuffle=none`, which reads them one after the other.
    """
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.course import load_samples, write_shuffled

    with held(out, force=force):
        samples = load_samples(data)
        write_shuffled(out, samples, seed)
    Output(False).say(f"{len(samples.images)} images in a new order are in {out}")


@bnn.command("classify")
def classify_verb(
    run: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file or a run folder.")],
    image: Annotated[
        Path | None, typer.Argument(metavar="IMAGE", help="A picture of 28 x 28, grey.")
    ] = None,
    data: Data = None,
    backend: Annotated[
        str,
        typer.Option("--backend", help="auto, popcount, amx, float32, or opencl[:part of a name]."),
    ] = "auto",
    json: Json = False,
) -> None:
    """Classify one picture, or the test images of a data set."""
    from bitwright.papers.bnn_soc.course import load_samples
    from bitwright.papers.bnn_soc.model import judge

    output = Output(json)
    model = _model(run)
    product = _backend(model, backend)
    if image is not None:
        sums = model.sums(_picture(image), product)[0]
        found = {"class": int(sums.argmax()), "sums": [float(s) for s in sums]}
        if not output.answered(found):
            output.say(f"class {found['class']}; sums {found['sums']}")
        return
    samples = load_samples(data)
    judged = judge(model, samples.test_images, samples.test_labels, product)
    if json:
        output.value(judged.to_json())
        return
    output.say(
        f"{judged.argmax:.2%} of {len(judged.classes)} images by the largest sum, "
        f"{judged.strict:.2%} with all outputs right"
    )


@bnn.command("lower")
def lower_verb(
    run: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file or a run folder.")],
    out: Out,
    data: Data = None,
    images: Annotated[
        int, typer.Option("--images", min=1, help="Test images that prove the hardware.")
    ] = 20,
    force: Force = False,
) -> None:
    """Make a design folder of a binarized network: `bitwright map`, `simulate`, `implement` it."""
    from bitwright.base.bounded import bounded
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.course import load_samples
    from bitwright.papers.bnn_soc.graph import make_design

    with held(out, force=force):
        model, samples = _model(run), load_samples(data)
        bounded(lambda: make_design(model, out, samples.test_images, images), run, made=True)
    Output(False).say(f"the design is in {out}; next: bitwright simulate {out}")


@bnn.command("detect")
def detect_verb(
    run: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file or a run folder.")],
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="Digits, light on dark.")],
    stride: Annotated[int, typer.Option("--stride", min=1, help="Pixels between windows.")] = 4,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=2.0, help="Least lead of the largest sum.")
    ] = 0.02,
    json: Json = False,
) -> None:
    """Find digits in a large picture: the network on every window of 28 x 28."""
    from dataclasses import asdict

    from bitwright.papers.bnn_soc.windows import detect

    found = detect(_model(run), _levels(picture), stride=stride, margin=margin)
    output = Output(json)
    if output.answered([asdict(one) for one in found]):
        return
    for one in found:
        output.say(f"{one.label} at row {one.top}, column {one.left} (lead {one.margin:.3f})")
    output.say(f"{len(found)} found")


@bnn.command("watch")
def watch_verb(
    run: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file or a run folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="PNG files of 28 x 28.")],
    queue: Annotated[Path, typer.Option("--queue", help="Folder for frames to be labelled.")],
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=2.0, help="Least lead of the largest sum.")
    ] = 0.02,
    wait: Annotated[
        float, typer.Option("--wait", min=0.0, help="Seconds to wait for more files.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Classify pictures as they come; those that the network is unsure of wait for a label."""
    from dataclasses import asdict

    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.stream import folder_source, watch

    output, found = Output(json), []
    with held(queue):
        for one in watch(
            _model(run), folder_source(folder, (28, 28), wait_s=wait), queue, margin=margin
        ):
            found.append(one)
            if not json:
                output.say(f"{one.name}: {one.label}" + ("" if one.sure else ", unsure"))
    output.answered([asdict(one) for one in found])


@bnn.command("retrain")
def retrain_verb(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of `bitwright bnn train`.")],
    queue: Annotated[Path, typer.Argument(metavar="QUEUE", help="Of `watch`, labels filled in.")],
    out: Out,
    passes: Annotated[int, typer.Option("--passes", min=1, max=10_000)] = 5,
    force: Force = False,
) -> None:
    """Train a network on with the labels that somebody has written into the queue's labels.csv."""
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.run_folder import MODEL, PACKED
    from bitwright.papers.bnn_soc.stream import labelled, retrain

    with held(out, force=force):
        model = _model(run)
        frames = labelled(queue, (28, 28), model.settings.sizes[-1])
        new = retrain(model, frames, passes=passes)
        new.save(out / MODEL)
        if new.settings.binary:
            new.save(out / PACKED, packed=True)
    Output(False).say(f"trained on {len(frames)} labelled frames; the network is in {out}")


@bnn.command("trace")
def trace_verb(
    preset: Preset,
    kernel: Annotated[
        str, typer.Option("--kernel", help="multiply, xnor or compressed.")
    ] = "compressed",
    json: Json = False,
) -> None:
    """The events of one classification on the board, by the model."""
    from dataclasses import asdict

    from bitwright.papers.bnn_soc.soc import trace
    from bitwright.report.table import Column, Kind, Table

    events = [asdict(event) for event in trace(_settings(preset, None).sizes, kernel)]
    columns = (
        Column("at_ms", "at", Kind.NUMBER, "ms", 3),
        Column("who", "who"),
        Column("what", "what"),
        Column("layer", "layer", Kind.NUMBER, digits=0),
        Column("nbytes", "bytes", Kind.NUMBER, digits=0),
        Column("items", "work-items", Kind.NUMBER, digits=0),
    )
    output = Output(json)
    table = Table(f"One frame of {preset}, {kernel}", columns, tuple(events))
    if not output.answered(table.to_json()):
        output.results(table)


@bnn.command("tables")
def tables_verb(json: Json = False) -> None:
    """The document's tables beside the model: times, resources, lines, SIMD against pipeline."""
    from bitwright.papers.bnn_soc import tables

    output = Output(json)
    found = [
        tables.time_table(), tables.resource_table(), tables.lines_table(),
        tables.training_table({}), tables.toys_table(),
    ]  # fmt: skip
    if output.answered([table.to_json() for table in found]):
        return
    for table in found:
        output.results(table)


@bnn.command("devices")
def devices_verb(json: Json = False) -> None:
    """OpenCL devices of this machine."""
    from bitwright.papers.bnn_soc.device import device_names

    output, names = Output(json), device_names()
    if not output.answered(list(names)):
        output.say("\n".join(names) or "no OpenCL device; Debian: pocl-opencl-icd")


def kpi_verb(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of `bitwright bnn train`.")
    ],
    data: Data = None,
    device: Annotated[
        str, typer.Option("--device", help="Part of an OpenCL device's name; none: without.")
    ] = "",
    design: Annotated[
        list[Path] | None,
        typer.Option("--design", help="A simulated design of the only RUN; may be given again."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for tables and charts.")] = None,
    json: Json = False,
) -> None:
    """The document's six KPIs of trained networks: CPU, OpenCL, RTL, the board by its model."""
    from bitwright.base.errors import RecipeError
    from bitwright.base.files import atomic_write
    from bitwright.base.places import held
    from bitwright.papers.bnn_soc.course import load_samples
    from bitwright.papers.bnn_soc.kpi import kpi_charts, kpi_table, kpis_of
    from bitwright.papers.bnn_soc.run_folder import load_run

    output = Output(json)
    if design and len(runs) > 1:
        raise RecipeError("belongs to one RUN", where="--design", hint="name that run alone")
    with held(out):
        trained = [load_run(run) for run in runs]
        samples = load_samples(data)
        wanted = None if device == "none" else device
        found = [kpi for one in trained for kpi in kpis_of(one, samples, wanted, design or ())]
        table = kpi_table(found)
        if out is not None:
            atomic_write(out / "kpi.md", table.to_markdown())
            atomic_write(out / "kpi.csv", table.to_csv())
            for name, picture in kpi_charts(found).items():
                atomic_write(out / name, picture + "\n")
    if not output.answered(table.to_json()):
        output.results(table)


def _settings(preset: str, assign: list[str] | None) -> Settings:
    """A preset with changes: each value is of the type that the option has."""
    from bitwright.base.errors import RecipeError
    from bitwright.papers.bnn_soc.course import PRESETS
    from bitwright.papers.bnn_soc.settings import parse_changes

    if preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}", hint="one of " + ", ".join(PRESETS))
    return parse_changes(PRESETS[preset], assign or ())


def _backend(model: Any, name: str) -> Any:
    if name == "auto":
        return None
    if name.split(":", maxsplit=1)[0] == "opencl":
        from bitwright.papers.bnn_soc.device import Device
        from bitwright.papers.bnn_soc.opencl_engine import opencl_products

        return opencl_products(Device.open(name.partition(":")[2]), model)
    return model.cpu(name)


def _model(place: Path) -> Model:
    from bitwright.base.folders import own_file
    from bitwright.papers.bnn_soc.model import Model
    from bitwright.papers.bnn_soc.run_folder import MODEL

    return Model.load(own_file(place, MODEL) if place.is_dir() else place)


def _levels(path: Path) -> Any:
    from bitwright.base.files import read_bytes
    from bitwright.data.decoding import Decoding, decode_image

    return decode_image(read_bytes(path), Decoding(grey=True), str(path))[..., 0]


def _picture(path: Path) -> Any:
    from bitwright.base.errors import DataError

    levels = _levels(path)
    if levels.shape != (28, 28):
        raise DataError(
            f"expected 28 x 28 pixels, got {levels.shape[0]} x {levels.shape[1]}", where=str(path)
        )
    return levels[None]


def add_commands(app: typer.Typer) -> None:
    """Add ``bnn`` to the command line."""
    app.add_typer(bnn)


def add_kpi(app: typer.Typer) -> None:
    """Add ``kpi`` to the command line."""
    app.command("kpi")(kpi_verb)
