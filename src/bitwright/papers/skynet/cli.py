# SPDX-License-Identifier: Apache-2.0
"""`bitwright skynet`: searching a network for its hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.options import Assign, Json, OutFolder, Ray, RecipeArgument, Threads
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.papers.skynet.search.run import SearchResult
    from bitwright.report.table import Table

skynet = typer.Typer(
    name="skynet",
    help="SkyNet's way to a detector: kinds of bundles, and a search for the hardware.",
    no_args_is_help=True,
)
_GROUPS = ("dw3-pw", "pw-dw3", "conv3")


def add_commands(app: typer.Typer) -> None:
    """Add the verbs."""
    app.add_typer(skynet)


@skynet.command("bundles")
def bundles_verb(json: Json = False) -> None:
    """The kinds of bundles that a search may repeat."""
    from bitwright.papers.skynet.search.candidate import BUNDLES
    from bitwright.report.table import Column, Table

    columns = (Column("bundle", "bundle"), Column("layers", "layers"))
    rows = tuple({"bundle": k, "layers": ", ".join(v)} for k, v in BUNDLES.items())
    _show(Output(json), Table("Bundles", columns, rows))


@skynet.command("search")
def search_verb(  # noqa: PLR0913, PLR0917 - each is one thing that a search is made of
    recipe: RecipeArgument,
    out: OutFolder,
    target_ms: Annotated[
        float, typer.Option("--target-ms", min=1e-6, help="Milliseconds an image that are wanted.")
    ],
    alpha: Annotated[
        float, typer.Option("--alpha", help="Accuracy that a millisecond is worth; below zero.")
    ] = -0.01,
    strategy: Annotated[
        str, typer.Option("--strategy", help="swarm, random, or nsga2 (Optuna).")
    ] = "swarm",
    bundle: Annotated[
        list[str] | None, typer.Option("--bundle", help="A kind of bundle; may be repeated.")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="Compare sketches first, go on with so many kinds."),
    ] = None,
    networks: Annotated[int, typer.Option("--networks", min=1, help="A group.")] = 4,
    epochs: Annotated[
        str, typer.Option("--epochs", help="Of fast training, an iteration: 2,4,6.")
    ] = "2,4,6",
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=32, help="Of the bundle.")] = 4,
    pools: Annotated[int, typer.Option("--pools", min=1, max=6)] = 3,
    least: Annotated[int, typer.Option("--least", min=4, help="Fewest channels.")] = 4,
    most: Annotated[int, typer.Option("--most", max=1024, help="Most channels.")] = 64,
    lone: Annotated[
        bool, typer.Option("--lone", help="A lone image's time counts, not the rate.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    workers: Annotated[int | None, typer.Option("--workers", min=1)] = None,
    threads: Threads = None,
    ray: Ray = None,
    assign: Assign = None,
    json: Json = False,
) -> None:
    """Search a network of repeated bundles for a recipe's data and target.

    What was measured is kept in the folder: a search that was stopped goes on there, and other
    strategies and seeds use it. The recipe of the chosen network lies there, too: build it.
    """
    from bitwright.base.places import held
    from bitwright.papers.skynet.search.run import SearchRequest, run_search
    from bitwright.papers.skynet.search.swarm import Bounds, Fitness, Settings
    from bitwright.pipeline.recipe import load_recipe

    output = Output(json)
    settings = Settings(
        tuple(bundle or _GROUPS),
        networks,
        _whole(epochs),
        Bounds(repeats, pools, least, most),
        Fitness(alpha, target_ms),
        seed,
    )
    request = SearchRequest(
        load_recipe(recipe, assign or []),
        settings,
        _strategy(strategy),
        out,
        keep,
        workers=workers,
        threads=threads,
        ray=ray,
        per="latency_ms" if lone else "interval_ms",
    )
    with held(out), output.progress() as progress:
        found = run_search(request, progress)
    _tell(output, found)


def _tell(output: Output, found: SearchResult) -> None:
    """What a search has found, as a table or as JSON."""
    if output.answered(
        {
            "chosen": found.chosen.candidate.to_options(),
            "ms": found.chosen.measured.time_ms,
            "accuracy": found.chosen.measured.accuracy,
            "candidates": len(found.trials),
            "files": {kind: str(path) for kind, path in found.paths.items()},
        }
    ):
        return
    output.results(found.table)
    known = found.chosen.measured
    output.say(
        f"chosen: {found.chosen.candidate.name}, {known.time_ms:.3g} ms, {known.accuracy:.4g}; "
        f"bitwright build {found.paths['recipe']}"
    )


def _show(output: Output, table: Table) -> None:
    if not output.answered(table.to_json()):
        output.results(table)


def _whole(text: str) -> tuple[int, ...]:
    from bitwright.base.errors import RecipeError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"epochs are {text!r}", where="--epochs", hint="such as 2,4,6") from None


def _strategy(name: str) -> str:
    from bitwright.base.errors import RecipeError
    from bitwright.papers.skynet.search.strategies import STRATEGIES

    if name not in STRATEGIES:
        raise RecipeError(
            f"unknown strategy {name!r}", where="--strategy", hint=f"known: {', '.join(STRATEGIES)}"
        )
    return name
