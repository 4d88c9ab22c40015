# SPDX-License-Identifier: Apache-2.0
"""K-means of the folded face networks over table sizes and scopes: accuracy and rate of each.

The best of a scope is the one with the highest parameter rate whose accuracy on view 1, where
thresholds come from, is within a margin of the float network's. View 2 is reported only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Measured
from bitwright.base.records import Finite, Positive
from bitwright.base.store import Store
from bitwright.base.version import __version__
from bitwright.papers.faces.matrix import MatrixRequest, Network, Pictures, Tell
from bitwright.papers.faces.networks import Made, clustered, table_fits
from bitwright.papers.faces.verification import embeddings, verify_embeddings
from bitwright.papers.ristretto.layers import layers_of
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section, write_report

NAME = "faces-clusters"
SCOPES = ("network", "group", "layer")
#: Powers of two from 8 to 4096.
ENTRIES = tuple(2**bits for bits in range(3, 13))
MARGIN = 1.0
_POINTS = "points"
_WORDS = {"network": "one table", "group": "a table a group", "layer": "a table a layer"}


@dataclass(frozen=True)
class SweepPoint:
    """One table size of one scope; scope ``float`` is the float network.

    Attributes:
        entries: of a table.
        used: largest number of different values in a layer; below ``entries`` the table is larger
            than its numbers are many.
        accuracy, error: of view 2, a share and its standard error.
        view1: accuracy on the pairs that chose the threshold.
    """

    network: str
    scope: str
    entries: int
    used: int
    accuracy: Finite
    error: Finite
    view1: Finite
    parameter_rate: Positive
    network_rate: Positive
    seconds: Finite


def parse_entries(text: str) -> tuple[int, ...]:
    """``all``, or table sizes by commas.

    Raises:
        RecipeError: a size is no whole number from 2 to 4096.
    """
    if text.strip().lower() == "all":
        return ENTRIES
    sizes = []
    for word in text.split(","):
        if not word.strip().isdecimal() or not 2 <= int(word) <= ENTRIES[-1]:
            raise RecipeError(
                f"no table size {word.strip()!r}",
                where="--sweep",
                hint=f"'all', or whole numbers from 2 to {ENTRIES[-1]} by commas",
            )
        sizes.append(int(word))
    return tuple(dict.fromkeys(sizes))


def run_sweep(
    request: MatrixRequest,
    entries: Sequence[int] = ENTRIES,
    *,
    margin: float = MARGIN,
    tell: Tell = lambda _: None,
) -> dict[str, Path]:
    """Measure plain k-means at every table size and scope; finished points are kept.

    Sizes whose tables would have more entries than there are parameters are left out.

    Args:
        request: as for the matrix; ``only`` chooses networks by parts of their names.
        margin: points of view 1 that the best of a scope may lose.

    Returns:
        The files written, by kind.

    Raises:
        DataError: pictures or weights are missing or broken.
        RecipeError: no network is left.
    """
    wanted = [
        section
        for section in request.recipe.networks
        if not request.only or any(part in section.name.lower() for part in request.only)
    ]
    if not wanted:
        known = ", ".join(section.name for section in request.recipe.networks)
        raise RecipeError(
            f"no network holds any of {', '.join(request.only)}",
            where="--only",
            hint=f"a part of a name: {known}",
        )
    pictures = Pictures(request)
    points: list[SweepPoint] = []
    for section in wanted:
        network = Network(request, section, pictures)
        points.append(_point(network, "float", 0, tell))
        points += [
            _point(network, scope, k, tell)
            for scope in SCOPES
            for k in entries
            if table_fits(network.subject, scope, k)
        ]
    return _write(request, points, margin)


def best_of(points: Sequence[SweepPoint], margin: float) -> dict[tuple[str, str], SweepPoint]:
    """The best of each network and scope; none where all lose more than the margin."""
    found: dict[tuple[str, str], SweepPoint] = {}
    floats = {p.network: p for p in points if p.scope == "float"}
    for point in points:
        key = (point.network, point.scope)
        least = floats[point.network].view1 - margin / 100
        if point.scope == "float" or point.view1 < least - 1e-12:
            continue
        if key not in found or point.parameter_rate > found[key].parameter_rate:
            found[key] = point
    return found


def _point(network: Network, scope: str, entries: int, tell: Tell) -> SweepPoint:
    store, key = Store(network.request.out), network.key_of({"swept": [scope, entries]})
    found = store.find(_POINTS, key, TypeAdapter(SweepPoint))
    if found is None:
        point = _made(network, scope, entries)
        store.keep(_POINTS, key, asdict(point))
    else:
        point = SweepPoint(**found.value)
    name, share = network.section.name, 100 * point.accuracy
    tell(f"{name}, {scope}, {entries}: {share:.2f} %, x{point.parameter_rate:.2f}")
    return point


def _made(network: Network, scope: str, entries: int) -> SweepPoint:
    started = time.perf_counter()
    if scope == "float":
        made = Made(network.subject.folded, "float32", 1.0, 1.0, 1.0)
    else:
        made = clustered(network.subject, scope, entries)
    vectors = embeddings(made.network, network.pictures.protocol)
    found = verify_embeddings(vectors, network.pictures.protocol, network.request.recipe.sweep)
    used = 0
    if scope != "float":
        used = max(int(layer.weight.unique().numel()) for layer in layers_of(made.network).values())
    return SweepPoint(
        network.section.name,
        scope,
        entries,
        used,
        found.accuracy,
        found.stderr,
        found.view1,
        made.parameter_rate or nan,
        made.network_rate or nan,
        time.perf_counter() - started,
    )


def _write(request: MatrixRequest, points: Sequence[SweepPoint], margin: float) -> dict[str, Path]:
    best = best_of(points, margin)
    networks = dict.fromkeys(point.network for point in points)
    sections = [_section([p for p in points if p.network == name], best) for name in networks]
    entries = tuple(dict.fromkeys(p.entries for p in points if p.scope != "float"))
    sizes = "all" if entries == ENTRIES else ",".join(map(str, entries))
    words = {
        "command": f"bitwright formats matrix face-matrix --sweep {sizes} --weights FOLDER",
        "best": f"the highest parameter rate at most {margin:g} points below the float network on "
        "view 1; view 2 takes no part in the choice",
        "seconds": f"{sum(point.seconds for point in points):.0f}",
        "bitwright": __version__,
        **request.notes,
    }
    return write_report(
        request.out,
        NAME,
        title="Face verification, table sizes",
        lead="Plain k-means on all weights and biases of folded networks, features float32, no "
        "retraining: table size, scope of a table, accuracy and rate.",
        sections=sections,
        facts=words,
    )


def _section(points: Sequence[SweepPoint], best: dict[tuple[str, str], SweepPoint]) -> Section:
    columns = (
        Column("scope", "scope"),
        Column("entries", "entries", Kind.NUMBER),
        Column("accuracy", "accuracy, view 2", Kind.SHARE),
        Column("view1", "accuracy, view 1", Kind.SHARE),
        Column("rate", "parameter rate", Kind.RATE),
        Column("network", "network rate", Kind.RATE),
        Column("note", "note"),
    )
    rows: list[dict[str, Value]] = []
    for point in points:
        row: dict[str, Any] = {
            "scope": _WORDS.get(point.scope, "float32"),
            "accuracy": Measured(point.accuracy, point.error),
            "view1": point.view1,
            "rate": point.parameter_rate,
            "network": point.network_rate,
        }
        if point.scope != "float":
            row["entries"] = point.entries
            row["note"] = _note(point, best)
        rows.append(row)
    name = points[0].network
    plot = Scatter(
        f"{name}: accuracy by rate",
        "parameter rate",
        "accuracy, view 2, %",
        tuple(
            Point(str(p.entries), _WORDS[p.scope], p.parameter_rate, 100 * p.accuracy)
            for p in points
            if p.scope != "float"
        ),
        baseline=("float32", 100 * points[0].accuracy),
    )
    return Section(Table(name, columns, tuple(rows)), (plot,))


def _note(point: SweepPoint, best: dict[tuple[str, str], SweepPoint]) -> str:
    words = ["best of its scope"] if best.get((point.network, point.scope)) == point else []
    if point.scope == "layer" and point.used < point.entries:
        words.append(f"no layer has more than {point.used} different weights")
    return "; ".join(words)
