# SPDX-License-Identifier: Apache-2.0
"""The face matrix: two networks in every format, as published tools make them and as we do.

A finished half of a row is kept under the hash of all that it depends on, so that a matrix that was
stopped goes on where it was.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from bitwright.base.errors import DataError, RecipeError
from bitwright.base.files import sha256_file
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.base.version import __version__
from bitwright.explore.fingerprint import model_code, settings_digest
from bitwright.interop.model_files import load_weights
from bitwright.models import build_model
from bitwright.papers.faces.benchmark import FaceBenchmark
from bitwright.papers.faces.face_densenet import count_layers
from bitwright.papers.faces.networks import Made, Subject, make_ours, make_plain
from bitwright.papers.faces.pairs import FaceProtocol
from bitwright.papers.faces.plans import ours
from bitwright.papers.faces.protocols import OrlSplit, lfw_protocol, orl_known, orl_protocol
from bitwright.papers.faces.recipe import (
    EXACT,
    FOLDED,
    ORIGINAL,
    OWN,
    FaceMatrixRecipe,
    NetworkSection,
    Row,
    rows_of,
)
from bitwright.papers.faces.tables import (
    OURS,
    PLAIN,
    NetworkFacts,
    Result,
    Results,
    folding_table,
    master_table,
    matrix_table,
    method_table,
    reference_table,
)
from bitwright.papers.faces.verification import Verification, embeddings, verify_embeddings
from bitwright.quantize.ptq import folding_of
from bitwright.report.table_page import Section, write_report

if TYPE_CHECKING:
    from bitwright.papers.faces.images import FaceSet

NAME = "faces"
_ROWS = "rows"
#: What makes and measures a row.
_MAKES = (
    "bitwright.papers.faces.networks",
    "bitwright.papers.faces.verification",
)
_ENDINGS = (".safetensors", ".pt", ".pth")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class MatrixRequest:
    """What a run is asked.

    Attributes:
        recipe: see `FaceMatrixRecipe`.
        base: folder that weights in the recipe are relative to.
        out: folder for tables, page and finished rows.
        data: the ORL archive or its folder, or LFW's folder; by default BITWRIGHT_DATA.
        weights: folder with ``MODEL.safetensors`` or ``MODEL.pt``, where the recipe names no file.
        notes: more facts for the foot of the tables, by a short name.
        only: parts of row keys; rows without any of them are left out.
        halves: ``plain``, ``ours`` or both.
    """

    recipe: FaceMatrixRecipe
    base: Path
    out: Path
    data: Path | None = None
    weights: Path | None = None
    only: tuple[str, ...] = ()
    halves: tuple[str, ...] = (PLAIN, OURS)
    notes: Mapping[str, str] = field(default_factory=dict)


def run_matrix(request: MatrixRequest, tell: Tell = lambda _: None) -> dict[str, Path]:
    """Run all rows that are not finished yet, and write the tables.

    Returns:
        The files written, by kind.

    Raises:
        DataError: pictures or weights are missing or broken.
        RecipeError: no row is left, or a network is unknown.
    """
    chosen = [r for r in rows_of(request.recipe) if _wanted(r, request.only)]
    if not chosen:
        raise RecipeError(
            f"no row holds any of {', '.join(request.only)}",
            where="--only",
            hint="parts of NETWORK/FORM/METHOD by commas, such as 1.0/folded,dfp",
        )
    pictures = Pictures(request)
    results: list[Result] = []
    facts: dict[str, NetworkFacts] = {}
    for section in request.recipe.networks:
        rows = [row for row in chosen if row.network == section.name]
        if not rows:
            continue
        network = Network(request, section, pictures)
        reference = Row(section.name, ORIGINAL, "float")
        for row in dict.fromkeys([reference, *rows]):
            for half in halves_of(row.method, request.halves):
                results.append(network.result(row, half, tell))
        facts[section.name] = network.facts()
    return write_tables(request, results, facts)


def halves_of(method: str, wanted: tuple[str, ...] = (PLAIN, OURS)) -> tuple[str, ...]:
    """The halves that a row has; a float row is in the left one whatever is wanted."""
    if method in EXACT:
        return (PLAIN,)
    return tuple(half for half in wanted if half == OURS or method not in OWN)


def parse_halves(half: str | None) -> tuple[str, ...]:
    """Both halves of the table, or the one named.

    Raises:
        RecipeError: there is no such half.
    """
    if half is None:
        return PLAIN, OURS
    if half not in (PLAIN, OURS):
        raise RecipeError(f"no half {half!r}", where="--half", hint=f"{PLAIN} or {OURS}")
    return (half,)


def _wanted(row: Row, only: tuple[str, ...]) -> bool:
    return not only or any(part in row.key.lower() for part in only)


class Pictures:
    """The protocol and the known faces, loaded once."""

    def __init__(self, request: MatrixRequest) -> None:
        self.request = request

    @cached_property
    def protocol(self) -> FaceProtocol:
        recipe, data = self.request.recipe, self.request.data
        if recipe.protocol == "lfw":
            how = recipe.preprocessing if "preprocessing" in recipe.model_fields_set else None
            return lfw_protocol(data, how, drop_missing=True)
        return orl_protocol(data, recipe.preprocessing)

    @cached_property
    def known(self) -> FaceSet:
        recipe, data = self.request.recipe, self.request.data
        if recipe.protocol == "orl":
            return orl_known(data, recipe.preprocessing, OrlSplit())
        return _frequent(self.protocol, recipe)

    @cached_property
    def digest(self) -> str:
        """Of every picture that is shown or measured, and of the pairs."""
        return content_key(FaceBenchmark(self.protocol).digest(), self.known.data.digest())


def _frequent(protocol: FaceProtocol, recipe: FaceMatrixRecipe) -> FaceSet:
    """People of view 1 with enough pictures that view 2 does not measure.

    The two views of LFW share people (Huang et al. 2007), so persons recur, pictures do not.
    """
    wanted = recipe.identities
    first, second = (
        np.unique(np.concatenate([view.first, view.second]))
        for view in (protocol.view1, protocol.view2)
    )
    rows = np.setdiff1d(first, second)
    faces = protocol.faces.take(rows)
    counts = np.bincount(faces.data.labels, minlength=len(faces.people))
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= wanted.each]
    if len(order) < wanted.people:
        raise DataError(
            f"only {len(order)} people of view 1 have {wanted.each} pictures that view 2 does not "
            f"use, {wanted.people} are asked for",
            where=protocol.name,
            hint="lower identities.each or identities.people in the recipe",
        )
    return faces.of(faces.people[i] for i in order[: wanted.people])


class Network:
    """One network: its rows, finished ones from the disk."""

    def __init__(self, request: MatrixRequest, section: NetworkSection, pictures: Pictures) -> None:
        self.request, self.section, self.pictures = request, section, pictures
        size = request.recipe.preprocessing.size
        self.file = _weights_file(request, section)
        spec = {"name": section.model, "options": section.options}
        model = build_model(spec, None, (size, size, 3))
        load_weights(model, self.file, (size, size, 3))
        model.eval()
        self.model = model

    @cached_property
    def subject(self) -> Subject:
        return Subject(self.section.name, self.model, self.pictures.known, self.request.recipe)

    @cached_property
    def floats(self) -> NDArray[np.float64]:
        """Embeddings of the float network."""
        found: NDArray[np.float64] = embeddings(self.model, self.pictures.protocol)
        return found

    def key(self, row: Row, half: str) -> str:
        """Of everything that a row depends on: weights, pictures, recipe, formats and methods."""
        more: dict[str, Any] = {"row": row.key, "half": half}
        plans = ours(self.request.recipe)
        if half == OURS and row.form == FOLDED and row.method in plans:
            more["plan"] = asdict(plans[row.method])
        return self.key_of(more)

    def key_of(self, more: Mapping[str, Any]) -> str:
        """Of code, weights, pictures, network and recipe, and of more facts."""
        recipe = self.request.recipe.model_dump(mode="json")
        del recipe["networks"], recipe["description"]
        network = [self.section.model, self.section.options, sha256_file(self.file)]
        network += [model_code(self.model), settings_digest(self.model)]
        return content_key(code_key(*_MAKES), network, self.pictures.digest, recipe, more)

    def result(self, row: Row, half: str, tell: Tell) -> Result:
        """One half of a row: from the disk, or made and measured."""
        store = Store(self.request.out)
        slug = re.sub(r"[^a-z0-9.]+", "-", f"{row.key}-{half}".lower())
        name = f"{slug}.{self.key(row, half)}"
        found = store.find(_ROWS, name, TypeAdapter(Result))
        if found is None:
            result = self._made(row, half)
            store.keep(_ROWS, name, result.to_json())
        else:
            result = Result.from_json(found.value)
        value = result.accuracy
        tell(f"{row.key} {half}: {100 * value.value:.2f} +/- {100 * (value.error or 0):.2f}")
        return result

    def _made(self, row: Row, half: str) -> Result:
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.request.recipe.seed)
            made = (make_plain if half == PLAIN else make_ours)(self.subject, row)
            vectors = embeddings(made.network, self.pictures.protocol)
        found = verify_embeddings(vectors, self.pictures.protocol, self.request.recipe.sweep)
        apart = float(np.abs(vectors - self.floats).max())
        return _result(row, half, made, found, apart, time.perf_counter() - started)

    def facts(self) -> NetworkFacts:
        """Counts, and the classifier's accuracy."""
        folding = folding_of(self.subject.folded)
        assert folding is not None
        return NetworkFacts(
            count_layers(self.model).keras,
            folding.layers_removed,
            folding.parameters_before,
            folding.parameters_removed,
            self.subject.top1(),
        )


def _weights_file(request: MatrixRequest, section: NetworkSection) -> Path:
    if section.weights is not None:
        return request.base / section.weights
    if request.weights is None:
        raise DataError(
            f"no weights for {section.name}",
            where="--weights",
            hint=f"name a folder with {section.model}.safetensors, or a file in the recipe; "
            "benchmarks/faces.py trains the networks",
        )
    tried = [request.weights / f"{section.model}{ending}" for ending in _ENDINGS]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        raise DataError(
            f"no weights for {section.name}",
            where=str(request.weights),
            hint=f"expected {section.model}.safetensors there",
        )
    return found


def _result(
    row: Row, half: str, made: Made, found: Verification, apart: float, seconds: float
) -> Result:
    return Result(
        row.network,
        row.form,
        row.method,
        half,
        made.formats,
        found.folds,
        "".join("1" if right else "0" for right in found.right),
        found.threshold,
        found.view1,
        apart,
        made.parameter_rate,
        made.network_rate,
        made.memory_ratio,
        seconds,
    )


def write_tables(
    request: MatrixRequest, rows: list[Result], facts: Mapping[str, NetworkFacts]
) -> dict[str, Path]:
    """All tables as Markdown, CSV, JSON and HTML."""
    results = Results(rows)
    quantized = ("minifloat", "e4m3", "dfp", "dfp8", "pow2")
    clustered = ("kmeans-network", "kmeans-group", "kmeans-layer")
    chosen = [r for r in rows_of(request.recipe) if _wanted(r, request.only)]
    tables = (
        matrix_table(results, chosen),
        reference_table(results, facts),
        folding_table(facts),
        method_table(results, "Original networks: convolutions and dense quantized", ORIGINAL,
                     quantized),
        method_table(results, "Folded networks: everything quantized", FOLDED, quantized),
        method_table(results, "K-means on folded networks", FOLDED, clustered),
        method_table(results, "K-means and minifloat on folded networks", FOLDED, ("hybrid",)),
        master_table(results),
    )  # fmt: skip
    recipe = request.recipe
    lead = (
        f"Face verification: {len(recipe.networks)} networks, {len(chosen)} rows, no retraining. "
        "Left half: what Ristretto's public code and plain k-means do; right half: this package."
    )
    pairs = len(rows[0].right) if rows else 0
    # The views of LFW share people; whom its user's networks have seen is not known here.
    orl = recipe.protocol == "orl"
    strangers = "people no network has seen" if orl else "view 2"
    others = "other people" if orl else "view 1"
    words = {
        "command": "bitwright formats matrix face-matrix --weights FOLDER (networks: "
        "benchmarks/faces.py)",
        "protocol": f"{recipe.protocol}: {pairs} pairs of {strangers}, in "
        f"{len(rows[0].folds) if rows else 0} folds; threshold from {others}",
        "preprocessing": json.dumps(recipe.preprocessing.record()),
        "searches": f"top-1 of a classifier of {recipe.identities.people} known people, margin "
        f"{recipe.search.margin} points, parity {recipe.search.parity}",
        "calibration": f"{recipe.calibration} images of known people, no labels",
        "seconds": f"{sum(row.seconds for row in rows):.0f}",
        "choice of the minifloat": "smallest squared error of the embeddings of the calibration "
        "images, before weights are rounded by GPTQ; no measured person takes part",
        "bitwright": __version__,
        **request.notes,
    }
    sections = [Section(table) for table in tables if table.rows]
    return write_report(
        request.out, NAME, title="Face verification", lead=lead, sections=sections, facts=words
    )
