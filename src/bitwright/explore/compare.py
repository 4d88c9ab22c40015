# SPDX-License-Identifier: Apache-2.0
"""`bitwright formats compare`: one network in many formats, in one table and one plot.

Every row quantizes the float network after training and measures it on the same images. Where the
network in these formats is made of integers it is frozen first and the integers are run; only what
has no integer form is simulated, and the row says why. A finished row is kept under the hash of all
that it depends on, so that a comparison that was stopped goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, TypeAdapter

from bitwright.base.described import Described
from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.base.figures import Measured
from bitwright.base.plugins import own_code
from bitwright.base.progress import Progress, no_progress
from bitwright.base.records import Finite
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.base.trust import module_folders
from bitwright.base.version import __version__
from bitwright.explore.compare_rows import chosen, make_row
from bitwright.explore.variants import (
    DEFAULT_METHOD,
    Variant,
    check_method,
    parse_variants,
)
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, Value, value_from_json
from bitwright.report.table_page import Section, check_folder, write_report
from bitwright.tasks.catalog import SHARE

if TYPE_CHECKING:
    from bitwright.explore.measuring import Outcome
    from bitwright.explore.subject import Subject

NAME = "compare"
_ROWS = "rows"
#: What makes and measures a row; of a benchmark, its own digest tells.
_MAKES = (
    "bitwright.explore.compare_rows",
    "bitwright.explore.measuring",
    "bitwright.train.evaluation",
)
_FLOAT = "float32"
_FLOAT_BITS = 32
#: Below this many points under the float network a format is drawn at the lower edge of the plot.
_SHOWN_POINTS = 15.0


@dataclass(frozen=True)
class CompareRequest:
    """What a comparison is asked.

    Attributes:
        subject: run directory, imported folder, model file, or a model's name with ``weights``.
        out: folder for table, page and finished rows.
        data, weights, input_shape: see `find_subject`.
        formats, of_weights, of_activations: see `parse_variants`.
        method: see `Variant`.
        images: for calibration, from the training images.
        limit: images that are measured at most; None: all.
        seed: of the choice of calibration images.
    """

    subject: str
    out: Path
    data: str | None = None
    weights: Path | None = None
    input_shape: tuple[int, int, int] | None = None
    formats: str | None = None
    of_weights: str | None = None
    of_activations: str | None = None
    method: str = DEFAULT_METHOD
    images: int = 256
    limit: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """What came of it: the table, and the files by kind."""

    table: Table
    paths: Mapping[str, Path]

    def to_json(self) -> dict[str, Any]:
        return {**self.table.to_json(), "files": {k: str(p) for k, p in self.paths.items()}}


COLUMNS = (
    Column("format", "weights"),
    Column("activation", "activations"),
    Column("bits", "bits", Kind.NUMBER, about="stored bits of a weight / of an activation"),
    Column("accuracy", "accuracy", Kind.SHARE, about="with its standard error"),
    Column(
        "loss",
        "against float",
        Kind.POINTS,
        "points",
        about="with the standard error of the paired difference: all rows saw the same images",
    ),
    Column(
        "size",
        "size",
        Kind.NUMBER,
        "bytes",
        about="all parameters as stored: weights, biases, tables, scales, shared exponents",
    ),
    Column(
        "rate", "rate", Kind.RATE, about="32-bit parameters over stored ones, everything counted"
    ),
    Column(
        "memory",
        "memory ratio",
        Kind.RATE,
        about="32-bit parameters and features of one image over stored ones",
    ),
    Column(
        "energy",
        "energy a MAC",
        Kind.NUMBER,
        "pJ",
        digits=3,
        about="a model, not a measurement: Horowitz, ISSCC 2014 (45 nm), by operand widths",
    ),
    Column(
        "lut",
        "LUT a MAC",
        Kind.NUMBER,
        about="from synthesis of our own multiply-accumulate for an ECP5, products in LUTs",
    ),
    Column("method", "method", about="what post-training quantization did; no retraining"),
    Column(
        "arithmetic",
        "arithmetic",
        about="exact integers: the frozen network was run; simulated: in float on the format's "
        "values, with the reason",
    ),
)


def run_compare(request: CompareRequest, progress: Progress = no_progress) -> Comparison:
    """Measure every variant and write the report.

    Raises:
        BitwrightError: what is wrong with subject, formats, method or folder; then no row has been
            measured. A variant that cannot be made is a row that says so.
    """
    from bitwright.explore.subject import find_subject

    variants = parse_variants(
        request.formats,
        weights=request.of_weights,
        activations=request.of_activations,
        method=request.method,
    )
    check_method(request.method)
    _check(request)
    subject = find_subject(
        request.subject,
        data=request.data,
        weights=request.weights,
        input_shape=request.input_shape,
        seed=request.seed,
    )
    count = min(request.images, len(subject.train))
    common = _common_key(request, subject, count)
    progress("measuring the float network", 0, len(variants))
    reference = subject.measure(subject.model, request.limit)
    rows = [_float_row(subject, reference)]
    for number, variant in enumerate(variants):
        progress(f"{variant.name}", number, len(variants))
        key = _key(common, variant)
        rows.append(_kept_or_made(request, subject, variant, reference, key))
    progress("writing the table", len(variants), len(variants))
    table = table_of(subject.name, rows, reference, request)
    facts = {
        "command": command_of(request),
        "network": subject.name,
        "formats": ", ".join(variant.name for variant in variants),
        "method": f"{request.method}: {' + '.join(variants[0].methods)}",
        "calibration": f"{count} training images, seed {request.seed}, no labels",
        "measured on": f"{len(reference.right)} {'pairs' if len(reference.folds) else 'images'}",
        "written": time.strftime("%Y-%m-%d"),
        "bitwright": __version__,
    }
    plots = plots_of(table, reference)
    paths = write_report(
        request.out,
        NAME,
        title=f"{subject.name}: number formats",
        lead=f"{reference.kind} of one network in {len(variants)} formats, after training",
        sections=[Section(table, plots)],
        facts=facts,
    )
    return Comparison(table, paths)


def _check(request: CompareRequest) -> None:
    check_folder(request.out)
    if request.images < 2:
        raise RecipeError(
            f"{request.images} images say nothing about the range of others",
            where="--images",
            hint="at least 2, better some hundred",
        )
    if request.limit is not None and request.limit < 1:
        raise RecipeError(
            f"{request.limit} images to measure on",
            where="--limit",
            hint="at least 1, or leave it out to measure on all",
        )


def _common_key(request: CompareRequest, subject: Subject, count: int) -> str:
    """Hash of everything that all rows depend on."""
    from bitwright.explore.fingerprint import model_code, settings_digest

    weights = [
        content_key(name, tensor.detach().cpu().contiguous().numpy().tobytes())
        for name, tensor in sorted(subject.model.state_dict().items())
    ]
    shown = [subject.train.take(range(count)), subject.test, subject.benchmark]
    images = [data.digest() for data in shown if data is not None]
    asked = [count, request.limit, request.seed, dict(subject.quant), subject.measured_by]
    network = [str(subject.model), model_code(subject.model), settings_digest(subject.model)]
    return content_key(code_key(*_MAKES), network, weights, images, asked)


def _key(common: str, variant: Variant) -> str:
    """The key of one row."""
    names = [variant.weight, variant.activation, variant.input, *variant.methods]
    return content_key(common, repr(variant), own_code(names, module_folders()))


def _kept_or_made(
    request: CompareRequest,
    subject: Subject,
    variant: Variant,
    reference: Outcome,
    key: str,
) -> dict[str, Value]:
    store = Store(request.out)
    kept = store.find(_ROWS, key, _kind_of(variant))
    if kept is not None:
        row = {name: value_from_json(value) for name, value in kept.value["row"].items()}
        return {**row, **_costs(variant)}  # looked up, not measured here: never kept
    try:
        row = make_row(subject, variant, reference, images=request.images, limit=request.limit)
    except (FormatError, ModelError, RecipeError) as error:
        return {**chosen(variant), "arithmetic": f"not possible: {error.message}"}
    stored = {k: v.to_json() if isinstance(v, Measured) else v for k, v in row.items()}
    store.keep(_ROWS, key, {"variant": variant.name, "row": stored})
    return {**row, **_costs(variant)}


class _Measured(Described):
    value: Finite
    error: Finite | None


class _Kept(Described):
    variant: str
    row: dict[str, bool | Finite | str | _Measured | None]


def _kind_of(variant: Variant) -> TypeAdapter[Any]:
    """What is kept of a variant, whose folder may be a stranger's."""

    def checked(kept: _Kept) -> _Kept:
        row = kept.row
        wrong = not {column.key for column in COLUMNS}.issuperset(row)
        wrong |= any(row.get(name) != value for name, value in chosen(variant).items())
        size = row.get("size")
        if wrong or not ((isinstance(size, int | float) and size > 0) or "accuracy" not in row):
            raise ValueError("no row of this variant")
        return kept

    return TypeAdapter(Annotated[_Kept, AfterValidator(checked)])


def _costs(variant: Variant) -> dict[str, Value]:
    from bitwright.build.energy_formats import mac_energy
    from bitwright.hw.macs import mac_cost

    weight, activation = variant.weight_format, variant.activation_format
    energy, cost = mac_energy(weight, activation), mac_cost(weight, activation)
    return {
        "energy": None if energy is None else float(energy.value),
        "lut": None if cost is None else float(cost.luts.value),
    }


def _float_row(subject: Subject, reference: Outcome) -> dict[str, Value]:
    from bitwright.build.energy_formats import mac_energy
    from bitwright.explore.model_sizes import model_size

    size = model_size(subject.model, sample_shape=subject.sample_shape)
    energy = mac_energy("e8m23", "e8m23")
    return {
        "format": _FLOAT,
        "activation": _FLOAT,
        "bits": f"{_FLOAT_BITS}/{_FLOAT_BITS}",
        "accuracy": reference.accuracy,
        "loss": Measured(0.0),
        "size": -(-size.parameter_bits // 8),
        "rate": size.parameter_rate,
        "memory": size.memory_ratio,
        "energy": None if energy is None else float(energy.value),
        "method": "as trained",
        "arithmetic": "float32",
    }


def table_of(
    name: str, rows: list[dict[str, Value]], reference: Outcome, request: CompareRequest
) -> Table:
    """The table; its accuracy column is named after what was measured."""
    count = len(reference.right)
    what = "pairs, in folds" if len(reference.folds) else "images"
    share = reference.unit == SHARE
    measured = {
        "accuracy": {"title": reference.kind}
        | ({} if share else {"kind": Kind.NUMBER, "unit": reference.unit}),
        "loss": {} if share else {"kind": Kind.NUMBER, "unit": reference.unit},
    }
    columns = tuple(replace(column, **measured.get(column.key, {})) for column in COLUMNS)
    notes = (f"Measured on {count} {what} that no choice was made on.",)
    if request.limit is not None and not len(reference.folds):
        notes = (f"Measured on the first {count} test images (--limit).",)
    return Table(f"{name} in every format", columns, tuple(rows), notes)


def plots_of(table: Table, reference: Outcome) -> tuple[Scatter, ...]:
    """Accuracy against the stored size, and against the bits of a weight."""
    points: list[tuple[Variant, Mapping[str, Value], Measured]] = []
    for row in table.rows:
        accuracy = row.get("accuracy")
        if isinstance(accuracy, Measured) and row["format"] != _FLOAT:
            points.append((Variant(str(row["format"]), str(row["activation"])), row, accuracy))
    share = reference.unit == SHARE
    times = 100 if share else 1
    base = times * reference.accuracy.value
    near = [a for _, _, a in points if not share or times * a.value >= base - _SHOWN_POINTS]
    lowest = min([times * (a.value - (a.error or 0.0)) for a in near], default=base)

    def drawn(x: str) -> tuple[Point, ...]:
        found = []
        for variant, row, accuracy in points:
            size = row["size"]
            assert isinstance(size, int | float)
            place = size / 1000 if x == "size" else variant.weight_format.bits
            error = None if accuracy.error is None else times * accuracy.error
            value = times * accuracy.value
            found.append(Point(variant.weight, variant.family, place, value, error))
        return tuple(found)

    unit = "percent" if share else reference.unit
    y_label = f"{', '.join(filter(None, (reference.kind, unit)))}; bars: standard error"
    what = reference.kind[:1].upper() + reference.kind[1:]
    common: dict[str, Any] = {
        "floor": lowest,
        "baseline": (f"float32: {base:.2f}", base),
    }
    return (
        Scatter(f"{what} against size", "stored parameters, kB", y_label, drawn("size"),
                log_x=True, **common),
        Scatter(f"{what} against width", "bits of a weight", y_label, drawn("bits"), **common),
    )  # fmt: skip


def command_of(request: CompareRequest) -> str:
    """The command line that gives this comparison again."""
    words = ["bitwright formats compare", request.subject]
    for option, value in (
        ("--data", request.data), ("--weights", request.weights),
        ("--formats", request.formats), ("--weight-formats", request.of_weights),
        ("--activations", request.of_activations), ("--method", request.method),
        ("--images", request.images), ("--limit", request.limit), ("--seed", request.seed),
        ("--out", request.out),
    ):  # fmt: skip
        if value is not None:
            words.append(f"{option} {value}")
    return " ".join(words)
