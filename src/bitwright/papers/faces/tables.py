# SPDX-License-Identifier: Apache-2.0
"""The tables of the face matrix, from its finished rows. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from bitwright.base.errors import DataError
from bitwright.base.figures import Measured
from bitwright.base.records import Finite
from bitwright.base.statistics import mcnemar, mean_of
from bitwright.papers.faces.recipe import EXACT, FOLDED, METHODS, ORIGINAL, OWN, Row
from bitwright.report.table import Column, Kind, Table, Value

PLAIN, OURS = "plain", "ours"
_TITLES = {
    "float": "float32",
    "converted": "float32, converted",
    "minifloat": "minifloat",
    "e4m3": "minifloat, e4m3",
    "dfp": "dynamic fixed point",
    "dfp8": "dynamic fixed point, 8 bits everywhere",
    "pow2": "power-of-two weights",
    "kmeans-network": "k-means, one table",
    "kmeans-group": "k-means, a table a group",
    "kmeans-layer": "k-means, a table a layer",
    "hybrid": "k-means a layer, minifloat",
}


@dataclass(frozen=True)
class Result:
    """What was measured for one half of one row.

    Attributes:
        half: ``plain`` or ``ours``.
        folds: accuracies of view 2, shares.
        right: ``1`` and ``0`` for each pair of view 2.
        error: largest difference of an embedding's value from the float network's.
    """

    network: str
    form: str
    method: str
    half: str
    formats: str
    folds: Annotated[tuple[Finite, ...], Field(min_length=1)]
    right: Annotated[str, Field(pattern="^[01]+$")]
    threshold: Finite
    view1: Finite
    error: Finite
    parameter_rate: Finite | None
    network_rate: Finite | None
    memory_ratio: Finite | None
    seconds: Finite

    @property
    def accuracy(self) -> Measured:
        """Mean of the folds with its standard error."""
        return mean_of(self.folds)

    def lost(self, reference: Result) -> str:
        """Points lost; ``not present`` where there are none."""
        points = 100 * (reference.accuracy.value - self.accuracy.value)
        return "0.00" if abs(points) < 1e-9 else f"{points:.2f}" if points > 0 else "not present"

    def p_value(self, reference: Result) -> float:
        """McNemar's exact test against the reference, two-sided."""
        pairs = list(zip(self.right, reference.right, strict=True))
        worse, better = pairs.count(("0", "1")), pairs.count(("1", "0"))
        return mcnemar(worse, better)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        return cls(**{**data, "folds": tuple(data["folds"])})


@dataclass(frozen=True)
class NetworkFacts:
    """What is known of a network besides its rows.

    Attributes:
        layers: Keras' layers.
        removed_layers, parameters, removed_parameters: by folding.
        top1: of the closed-set classifier, a share.
    """

    layers: int
    removed_layers: int
    parameters: int
    removed_parameters: int
    top1: float


class Results:
    """Finished rows by network, form, method and half."""

    def __init__(self, rows: Sequence[Result]) -> None:
        """Raises DataError: rows are of different pairs; some may come from another's folder."""
        if len({len(row.right) for row in rows}) > 1:
            raise DataError(
                "rows tell of different numbers of pairs",
                where="rows",
                hint="delete the folder `rows`, and run it again",
            )
        self._rows = {(r.network, r.form, r.method, r.half): r for r in rows}
        self.networks = tuple(dict.fromkeys(r.network for r in rows))

    def get(self, network: str, form: str, method: str, half: str = PLAIN) -> Result | None:
        half = PLAIN if method in EXACT else half
        return self._rows.get((network, form, method, half))

    def reference(self, network: str) -> Result | None:
        """The float network as it was trained."""
        return self.get(network, ORIGINAL, "float")


def matrix_table(results: Results, rows: Sequence[Row]) -> Table:
    """All rows, both halves side by side."""
    columns = [Column("network", "network"), Column("form", "batch norm"), Column("method", "row")]
    for half, words in ((PLAIN, "as published tools do"), (OURS, "ours")):
        columns += [
            Column(f"{half}_formats", f"formats, {words}"),
            Column(f"{half}_accuracy", f"accuracy, {words}", Kind.SHARE),
            Column(f"{half}_lost", "points lost"),
            Column(f"{half}_p", "p", Kind.NUMBER, digits=3),
            Column(f"{half}_rate", "parameter rate", Kind.RATE),
            Column(f"{half}_network", "network rate", Kind.RATE),
            Column(f"{half}_memory", "memory ratio", Kind.RATE),
        ]
    lines = []
    for row in rows:
        form = "folded" if row.form == FOLDED else "as trained"
        line: dict[str, Value] = {"network": row.network, "form": form}
        line["method"] = _TITLES[row.method]
        for half in (PLAIN, OURS):
            line |= _half(results, row, half)
        lines.append(line)
    notes = (
        "Accuracy: mean of the folds of view 2 and its standard error. p: McNemar's exact test "
        "against the float network on the same pairs. Parameter rate: 32 bits a parameter over "
        "stored bits; network rate: mean of the factors of parameters, layer inputs and layer "
        "outputs, as the literature prints it; memory ratio: all bits before over all bits after, "
        "tables, scales, biases and the features of one image included.",
    )
    return Table("The matrix", tuple(columns), tuple(lines), notes)


def _half(results: Results, row: Row, half: str) -> dict[str, Value]:
    found = results.get(row.network, row.form, row.method, half)
    reference = results.reference(row.network)
    if found is None or (half == OURS and row.method in EXACT):
        return {}
    cells: dict[str, Value] = {
        f"{half}_formats": found.formats,
        f"{half}_accuracy": found.accuracy,
        f"{half}_rate": found.parameter_rate,
        f"{half}_network": found.network_rate,
        f"{half}_memory": found.memory_ratio,
    }
    if reference is not None:
        cells[f"{half}_lost"] = found.lost(reference)
        cells[f"{half}_p"] = found.p_value(reference)
    return cells


def reference_table(results: Results, facts: Mapping[str, NetworkFacts]) -> Table:
    """Float networks: as trained, converted, folded."""
    columns = (
        Column("network", "network"),
        Column("accuracy", "accuracy", Kind.SHARE),
        Column("threshold", "threshold", Kind.NUMBER, digits=2),
        Column("converted", "difference, converted"),
        Column("folded", "difference, folded"),
        Column("error", "largest difference of a value, folded"),
        Column("top1", "classifier, top-1", Kind.SHARE),
    )
    rows: list[dict[str, Value]] = []
    for network in results.networks:
        reference = results.reference(network)
        if reference is None:
            continue
        row: dict[str, Value] = {
            "network": network,
            "accuracy": reference.accuracy,
            "threshold": reference.threshold,
        }
        for key, form, method in (
            ("converted", ORIGINAL, "converted"),
            ("folded", FOLDED, "float"),
        ):
            other = results.get(network, form, method)
            if other is not None:
                apart = 100 * (reference.accuracy.value - other.accuracy.value)
                row[key] = f"{abs(apart):.2f}"
                row["error"] = f"{other.error:.1e}"
        if network in facts:
            row["top1"] = facts[network].top1
        rows.append(row)
    return Table("Reference, float32", columns, tuple(rows))


def folding_table(facts: Mapping[str, NetworkFacts]) -> Table:
    """What folding batch norms saves."""
    columns = (
        Column("network", "network"),
        Column("layers", "layers removed", Kind.NUMBER),
        Column("layer_share", "of the layers", Kind.SHARE, digits=1),
        Column("parameters", "parameters removed", Kind.NUMBER),
        Column("parameter_share", "of the parameters", Kind.SHARE),
    )
    rows: tuple[dict[str, Value], ...] = tuple(
        {
            "network": name,
            "layers": fact.removed_layers,
            "layer_share": fact.removed_layers / fact.layers,
            "parameters": fact.removed_parameters,
            "parameter_share": fact.removed_parameters / fact.parameters,
        }
        for name, fact in facts.items()
    )
    return Table("Folding", columns, rows)


def method_table(results: Results, title: str, form: str, methods: Sequence[str]) -> Table:
    """Some methods of one form: accuracy and loss, both halves as rows."""
    columns = (
        Column("method", "method"),
        Column("network", "network"),
        Column("half", "by"),
        Column("formats", "formats"),
        Column("accuracy", "accuracy", Kind.SHARE),
        Column("lost", "points lost"),
        Column("rate", "parameter rate", Kind.RATE),
        Column("network_rate", "network rate", Kind.RATE),
    )
    rows: list[dict[str, Value]] = []
    for method in methods:
        for network in results.networks:
            reference = results.reference(network)
            for half in (PLAIN, OURS):
                found = results.get(network, form, method, half)
                if found is None or reference is None:
                    continue
                rows.append(
                    {
                        "method": _TITLES[method],
                        "network": network,
                        "half": "published tools" if half == PLAIN else "ours",
                        "formats": found.formats,
                        "accuracy": found.accuracy,
                        "lost": found.lost(reference),
                        "rate": found.parameter_rate,
                        "network_rate": found.network_rate,
                    }
                )
    return Table(title, columns, tuple(rows))


def master_table(results: Results) -> Table:
    """Points lost, method by network and form."""
    places = [(form, network) for form in (ORIGINAL, FOLDED) for network in results.networks]
    columns = [Column("method", "method"), Column("half", "by")]
    columns += [Column(f"{f}/{n}", f"{n}, {f}") for f, n in places]
    rows: list[dict[str, Value]] = []
    for method in dict.fromkeys(method for _, method in METHODS if method != "converted"):
        for half in (PLAIN,) if method in EXACT else (OURS,) if method in OWN else (PLAIN, OURS):
            row: dict[str, Value] = {"method": _TITLES[method]}
            row["half"] = "published tools" if half == PLAIN else "ours"
            for form, network in places:
                found = results.get(network, form, method, half)
                reference = results.reference(network)
                if found is not None and reference is not None:
                    row[f"{form}/{network}"] = found.lost(reference)
            rows.append(row)
    return Table("Points lost", tuple(columns), tuple(rows))
