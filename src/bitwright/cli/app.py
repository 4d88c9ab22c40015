# SPDX-License-Identifier: Apache-2.0
"""The verbs. Each reads its arguments, calls one function of the library and prints the result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bitwright.base.plugins import load_attribute, plugged
from bitwright.base.version import __version__
from bitwright.cli import bench as benchmark
from bitwright.cli import (
    board,
    compare,
    conversion,
    designs,
    experiments,
    forecast,
    formats,
    models,
    show,
    splitting,
)
from bitwright.cli import search as searching
from bitwright.cli.options import (
    Assign,
    Data,
    Force,
    Json,
    RecipeArgument,
    Reuse,
    RunDir,
    TargetName,
    resolve,
)
from bitwright.cli.output import Output

app = typer.Typer(
    name="bitwright",
    help="Few-bit CNNs: from a PyTorch model to a proven bitstream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Step = Literal["teach", "train", "quantize", "lower", "map", "simulate", "implement", "report"]
Kind = Literal[
    "recipes",
    "keys",
    "formats",
    "models",
    "pretrained",
    "datasets",
    "tasks",
    "policies",
    "presets",
    "targets",
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bitwright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Few-bit CNNs: from a PyTorch model to a proven bitstream."""


@app.command()
def build(
    recipe: RecipeArgument,
    run_dir: RunDir = None,
    target: TargetName = None,
    until: Annotated[Step, typer.Option("--until", help="Stop after this step.")] = "report",
    data: Data = None,
    assign: Assign = None,
    reuse: Reuse = None,
    json: Json = False,
) -> None:
    """Run every step: train, quantize, lower, map, simulate, implement, report."""
    job = resolve(recipe, run_dir, data, assign, target)
    show.run_steps(Output(json), job.recipe, job.run_dir, until=until, reuse=reuse)


def _add_step(name: str, text: str) -> None:
    """One verb for one step, which first runs whatever it needs and is not there yet."""

    def verb(
        recipe: RecipeArgument,
        run_dir: RunDir = None,
        target: TargetName = None,
        data: Data = None,
        assign: Assign = None,
        json: Json = False,
    ) -> None:
        if name in designs.VERBS and designs.is_design_folder(recipe):
            others = {"--run-dir": run_dir, "--data": data}
            designs.run_design(
                Output(json), name, Path(recipe), target=target, assign=assign, others=others
            )
            return
        job = resolve(recipe, run_dir, data, assign, target)
        show.run_steps(Output(json), job.recipe, job.run_dir, only=name)

    app.command(name, help=text)(verb)


for _name, _text in (
    ("train", "Train the model in floating point."),
    ("quantize", "Calibrate, train in few bits, and derive the integer graph."),
    ("lower", "Optimise the integer graph; prove it equal to the trained model; export QONNX."),
    ("map", "Choose the folding for the target and write the RTL."),
    ("simulate", "Simulate the RTL cycle by cycle; prove it equal to the integer graph."),
    ("implement", "Synthesise, place and route for the target; write the bitstream."),
    ("report", "Write the page and the JSON of what is there."),
):
    _add_step(_name, _text)


@app.command()
def estimate(
    recipe: RecipeArgument,
    target: TargetName = None,
    data: Data = None,
    assign: Assign = None,
    json: Json = False,
) -> None:
    """Predict cycles and resources; nothing is trained, simulated or synthesised."""
    from bitwright.pipeline.api import estimate_recipe

    job = resolve(recipe, None, data, assign, target)
    output = Output(json)
    with output.progress() as progress:
        result = estimate_recipe(job.recipe, progress=progress)
    show.mapping(output, result)


@app.command()
def explain(recipe: RecipeArgument, assign: Assign = None, json: Json = False) -> None:
    """Say what every operand of every layer becomes, and by which rule; of the programmed engine,
    how each layer is mapped, too.
    """
    from bitwright.pipeline.api import explain_engine, explain_recipe

    job = resolve(recipe, None, None, assign)
    output = Output(json)
    rows = explain_recipe(job.recipe)
    with output.progress() as progress:
        engine = explain_engine(job.recipe, progress=progress)
    show.explanation(output, rows, None if engine is None else engine.model_dump(mode="json"))


app.command()(models.inspect)
app.command()(models.memory)
app.command()(forecast.forecast)
app.command()(compare.diff)
app.command()(benchmark.bench)
app.command("import")(conversion.import_)
app.command()(conversion.export)
app.command()(splitting.split)
app.command()(conversion.database)
app.command()(searching.search)
app.command()(experiments.study)
app.command()(experiments.sweep)
app.add_typer(formats.app)
app.add_typer(board.app)
for _place in plugged("commands").values():
    load_attribute(_place)(app)


@app.command()
def doctor(json: Json = False) -> None:
    """Find and try every external tool; say how to install what is missing."""
    from bitwright.cli.listing import show_doctor

    raise typer.Exit(show_doctor(Output(json)))


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    below: Annotated[
        str, typer.Argument(metavar="[SECTION]", help="Of keys: below which, such as train.float.")
    ] = "",
    json: Json = False,
) -> None:
    """List recipes, keys, formats, models, pretrained weights, datasets, tasks, policies or
    targets.
    """
    from bitwright.cli.listing import show_list

    show_list(Output(json), kind, below)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The YAML file to write.")] = Path("recipe.yaml"),
    model: Annotated[
        str,
        typer.Option(
            help="Your model: package.module:function, a model's file (ONNX, Caffe, Keras, "
            "safetensors), or a name of the zoo."
        ),
    ] = "my_model:make_model",
    images: Annotated[
        Path, typer.Option("--images", help="Your data: a folder (or zip) of class folders.")
    ] = Path("images"),
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Instead of images: module:function of yours that returns arrays, or a name "
            "(`bitwright list datasets`).",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a commented recipe for your own model and data."""
    from bitwright.cli.template import write_template

    notes = write_template(path, model, images, data, force=force)
    output = Output(json)
    if not output.answered({"recipe": str(path), "notes": notes}):
        for note in notes:
            output.say(f"note: {note}")
        output.say(f"wrote {path}; next: bitwright explain {path}, then bitwright build {path}")
