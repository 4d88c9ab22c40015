# SPDX-License-Identifier: Apache-2.0
"""The verbs of hardware on a design folder: what `import` or `bitwright.build_model` has made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.cli.output import Output

#: Steps that need no recipe.
VERBS = ("map", "simulate", "implement", "report")


def is_design_folder(name: str) -> bool:
    """Whether RECIPE is a design folder."""
    from bitwright.pipeline.designs.folder import is_design

    return is_design(Path(name).expanduser())


def run_design(
    output: Output,
    name: str,
    folder: Path,
    *,
    target: str | None,
    assign: list[str] | None,
    others: dict[str, Any],
) -> None:
    """One step of a design folder, and what the folder then holds.

    Raises:
        RecipeError: an option that only recipes have.
    """
    from bitwright.base.figures import show
    from bitwright.pipeline.designs import steps
    from bitwright.pipeline.designs.folder import open_design

    refuse_options(folder, others)
    given = list(assign or [])
    if target is not None:
        given.insert(0, f"hardware.target={json.dumps(target)}")
    design = open_design(folder.expanduser(), given)
    made = design.folder / name
    with output.progress() as progress:
        if name == steps.IMPLEMENT:
            design = steps.implement_design(design, progress)
        else:
            functions = {
                steps.MAP: steps.map_design,
                steps.SIMULATE: steps.simulate_design,
                steps.REPORT: steps.report_design,
            }
            made = functions[name](design, progress)
    rows, proof = steps.summary_of(design), steps.proof_of(design)
    value = {
        "design": str(folder),
        "step": str(made),
        "figures": {row.label: row.figure and row.figure.to_json() for row in rows},
        "proof": proof and proof.model_dump(mode="json"),
    }
    if output.answered(value):
        return
    cells = [
        (row.label, show(row.figure), str(row.figure.source) if row.figure else "", row.note)
        for row in rows
    ]
    title = f"{design.graph.name} on {design.settings.hardware.target}"
    output.table(title, ("figure", "value", "source", ""), cells)
    if proof is not None:
        output.say(steps.proof_words(proof))
    output.say(f"report: {made / 'report.html'}" if name == "report" else f"results: {made}")


def refuse_options(folder: Path, others: dict[str, Any]) -> None:
    """Refuse options that a design folder has no use for."""
    named = [option for option, value in others.items() if value is not None]
    if named:
        raise RecipeError(
            f"{', '.join(named)} is of recipes and run directories",
            where=str(folder),
            hint="a design folder has its data and results in itself; leave it out",
        )
