# SPDX-License-Identifier: Apache-2.0
"""What each format of each unit costs when everything else stays float.

The float network runs once over a small calibration set and every tensor is kept, of as many images
at a time as there is room for; for each option only the layers behind the unit run again. The
damage is the Kullback-Leibler divergence of the scores from the float ones, as the loss of
HAWQ-like methods approximates it, or for networks that give no scores the squared error of the
output over the output's variance. Both grow with the square of a small disturbance, which is why
damages of several units add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.base.memory import LARGE, MOST_OF_A_FILE, is_chosen, machine_memory, shown
from bitwright.base.progress import Progress, no_progress
from bitwright.explore.search.candidates import Candidates
from bitwright.explore.search.units import Option, Space, Unit, make_space, with_damage
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.convert import apply
from bitwright.quantize.estimators import estimate_scale, estimator_of
from bitwright.quantize.histogram import Observed
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq.calibration import observe
from bitwright.quantize.ptq.samples import Samples, at_a_time, batches_for, calibration_batches
from bitwright.quantize.quantizer import Phase, floating, set_phase
from bitwright.quantize.shapes import model_shapes
from bitwright.quantize.spec import Role
from bitwright.quantize.weight_quantizer import WeightQuantizer
from bitwright.report.table import Column, Kind, Table, Value

IMAGES = 128
_CHUNK = 32

UNITS = (
    Column("layer", "layer"),
    Column("role", "role"),
    Column("format", "format"),
    Column("bits", "bits", Kind.NUMBER),
    Column("values", "values", Kind.NUMBER),
    Column("stored_bits", "stored", Kind.NUMBER, "kB", per=8000),
    Column("damage", "damage", Kind.NUMBER),
)
"""What is said of a unit and one of its options."""


class Damage(StrEnum):
    """How a change of the output is measured."""

    KL = "kl"
    ERROR = "error"


@dataclass(frozen=True)
class SensitivityTable:
    """Damages of every option of every unit.

    Attributes:
        space: the units, with what was measured.
        measure: see `Damage`.
        images: how many were run.
    """

    space: Space
    measure: Damage
    images: int

    def rows(self) -> list[dict[str, Any]]:
        """One a unit and option, in execution order."""
        return [unit_row(unit, option) for unit in self.space.units for option in unit.options]

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure.value,
            "images": self.images,
            "notes": list(self.space.notes),
            "rows": self.rows(),
        }

    def to_csv(self) -> str:
        return Table("", UNITS, tuple(self.rows())).to_csv()

    def to_markdown(self) -> str:
        """Units down, formats across; a dash where a unit cannot have a format."""
        names = dict.fromkeys(o.format.name for unit in self.space.units for o in unit.options)
        kept = tuple(column for column in UNITS if column.key in ("layer", "role", "values"))
        columns = (*kept, *(Column(f"={name}", name, Kind.NUMBER) for name in names))
        rows: list[dict[str, Value]] = []
        for unit in self.space.units:
            row = unit_row(unit, unit.options[0])
            row = {column.key: row[column.key] for column in kept}
            rows.append(row | {f"={o.format.name}": o.damage for o in unit.options})
        head = f"Damage ({self.measure.value}) of each format alone, {self.images} images.\n\n"
        return head + Table("", columns, tuple(rows)).to_markdown()


def unit_row(unit: Unit, option: Option) -> dict[str, Any]:
    """The values of `UNITS`."""
    return {
        "layer": unit.name,
        "role": unit.role.value,
        "format": option.format.name,
        "bits": option.bits,
        "values": unit.count,
        "stored_bits": option.stored_bits,
        "damage": option.damage,
    }


def sensitivity_table(
    model: nn.Module,
    samples: Samples,
    candidates: Candidates,
    *,
    measure: Damage | str = Damage.KL,
    images: int = IMAGES,
    base: Mapping[str, Any] | None = None,
    per_width: int | None = None,
    progress: Progress = no_progress,
) -> SensitivityTable:
    """Measure every candidate of every unit of a float model; the model is left as it is.

    Args:
        model: a plain float module in evaluation mode, batch norm folded or not.
        samples: typical inputs; no labels.
        measure: ``kl`` for scores, ``error`` for vectors and images.
        images: how many of the samples are used.
        base: fields of the ``quant`` section that hold whatever is chosen: ``input`` (of the
            input, which is not searched; uint8), ``threshold_bits``.
        per_width: of the formats of one width, measure only so many for a weight, those with the
            smallest squared error of the weight itself; None: all.

    Raises:
        RecipeError: no candidate fits some layer.
        ModelError: the model cannot be converted.
        DataError: the samples do not fit it.
    """
    batches = batches_for(model, first_samples(samples, images), _CHUNK)
    bench = _Bench(model, candidates, batches, base or {})
    if per_width is not None:
        bench.thin_out(per_width)
    damages = bench.measure(Damage(measure), progress)
    units = [with_damage(u, d) for u, d in zip(bench.space.units, damages, strict=True)]
    space = replace(bench.space, units=tuple(units))
    return SensitivityTable(space, Damage(measure), sum(len(batch) for batch in batches))


def first_samples(samples: Samples, images: int) -> Tensor:
    """The first of some samples, as one tensor.

    Raises:
        DataError: the samples are unusable.
    """
    whole = torch.cat(calibration_batches(samples, _CHUNK))
    return whole[:images]


class _Bench:
    """The converted model in floating point, its quantizers, and what they have seen."""

    def __init__(
        self,
        model: nn.Module,
        candidates: Candidates,
        batches: list[Tensor],
        base: Mapping[str, Any],
    ) -> None:
        shape = tuple(batches[0].shape[1:])
        weight, feature = candidates.widest
        start = make_space(model, Candidates((weight,), (feature,)), shape, [], base)
        self.model = apply(
            model, Policy.from_dict(start.base), Phase.CALIBRATE, sample_shape=shape
        ).eval()
        self.modules = dict(self.model.named_modules())
        self.nodes = self._by_key(start)
        self.space = make_space(model, candidates, shape, self._groups(), base)
        self.seen: dict[ActivationQuantizer, Observed] = observe(
            self.model, batches, at_a_time(model, batches)
        )
        self.interpreter = fx.Interpreter(self.model, garbage_collect_values=False)
        self.last_readers = {
            source: node for node in self.model.graph.nodes for source in node.all_input_nodes
        }
        kept = _images_at_a_time(self.model, shape)
        self.batches = [part for batch in batches for part in batch.split(kept)]
        set_phase(self.model, Phase.TRAIN)

    def _by_key(self, start: Space) -> dict[str, fx.Node]:
        """Nodes of the converted model by the key of the operand they stand for."""
        calls = [n for n in self.model.graph.nodes if n.op == "call_module"]
        layers = {
            f"{n.target}.{Role.WEIGHT.value}": n
            for n in calls
            if isinstance(self.modules[str(n.target)], QuantLayer)
        }
        quantizers = [
            n for n in calls if isinstance(self.modules[str(n.target)], ActivationQuantizer)
        ]
        features = [
            fact
            for fact in start.facts
            if fact.role is not Role.WEIGHT and fact.spec is not None  # an input may stay float
        ]
        if len(features) != len(quantizers):
            raise ModelError("internal: quantizers and operands do not match")
        return layers | {f.key: n for f, n in zip(features, quantizers, strict=True)}

    def _groups(self) -> list[list[str]]:
        """Keys of features that share a scale."""
        found: dict[int, list[str]] = {}
        for key, node in self.nodes.items():
            module = self.modules[str(node.target)]
            if isinstance(module, ActivationQuantizer) and module.role is not Role.INPUT:
                found.setdefault(id(module.owner), []).append(key)
        return [keys for keys in found.values() if len(keys) > 1]

    def thin_out(self, per_width: int) -> None:
        """Keep the best formats of each width of each weight, by the error of the weight."""
        units = tuple(self._thinned(u, per_width) if u.is_weight else u for u in self.space.units)
        self.space = replace(self.space, units=units)

    @torch.no_grad()
    def _thinned(self, unit: Unit, per_width: int) -> Unit:
        layer: Any = self.modules[str(self.nodes[unit.keys[0]].target)]
        by_width: dict[int, list[tuple[float, int]]] = {}
        for index, option in enumerate(unit.options):
            quantized = _quantized(layer, option.members[0].spec)
            error = float((quantized - layer.weight).to(torch.float64).square().sum())
            by_width.setdefault(option.bits, []).append((error, index))
        kept = sorted(i for found in by_width.values() for _, i in sorted(found)[:per_width])
        return replace(unit, options=tuple(unit.options[i] for i in kept))

    def measure(self, how: Damage, progress: Progress) -> list[list[float]]:
        """Damage of each option of each unit, a mean over all images."""
        changes = [
            [self._change(unit, option) for option in unit.options] for unit in self.space.units
        ]
        totals = [[0.0 for _ in unit.options] for unit in self.space.units]
        scale, done, total = 0.0, 0, len(self.batches) * sum(map(len, totals))
        images = sum(len(batch) for batch in self.batches)
        with torch.no_grad(), floating(self.model):
            for batch in self.batches:
                self.interpreter.env = kept = {}  # those of the last batch go first
                self.interpreter.run(batch)
                kept = self.interpreter.env
                reference = kept[self.model.graph.output_node()]
                if not bool(torch.isfinite(reference).all()):
                    raise ModelError(
                        "gives NaN or infinity for a sample",
                        where="search",
                        hint="its weights are too large, or the samples are not scaled as in "
                        "training",
                    )
                scale += _size(reference, how)
                for unit, options, sums in zip(self.space.units, changes, totals, strict=True):
                    for index, change in enumerate(options):
                        found = self._rerun(kept, change(kept))
                        sums[index] += _damage(reference, found, how)
                        done += 1
                        progress(f"sensitivity of {unit.name}", done, total)
        divisor = float(images) if how is Damage.KL else max(scale, 1e-30)
        damages = [[value / divisor for value in sums] for sums in totals]
        for unit, found in zip(self.space.units, damages, strict=True):
            for option, damage in zip(unit.options, found, strict=True):
                if not isfinite(damage):
                    raise ModelError(
                        f"in {option.format.name} the output's error is {damage}: no choice can be "
                        "made by it",
                        where=unit.name,
                        hint="leave the format out, or look for weights that are far too large",
                    )
        return damages

    def _change(self, unit: Unit, option: Option) -> Callable[[Any], dict[fx.Node, Tensor]]:
        """A function from kept tensors to the tensors that a unit in this format gives."""
        parts = [
            self._weight_change(key, member)
            if unit.is_weight
            else self._feature_change(key, member)
            for key, member in zip(unit.keys, option.members, strict=True)
        ]

        def change(kept: dict[fx.Node, Any]) -> dict[fx.Node, Tensor]:
            return {node: function(kept) for node, function in parts}

        return change

    def _weight_change(self, key: str, member: Any) -> tuple[fx.Node, Callable[[Any], Tensor]]:
        node = self.nodes[key]
        layer: Any = self.modules[str(node.target)]
        weight = _quantized(layer, member.spec)

        def function(kept: dict[fx.Node, Any]) -> Tensor:
            own = layer.weight.data
            layer.weight.data = weight  # in place, for one call: the layer computes as it does
            layer.cache.clear()
            try:
                made: Tensor = layer(kept[node.all_input_nodes[0]])
            finally:
                layer.weight.data = own
                layer.cache.clear()
            return made

        return node, function

    def _feature_change(self, key: str, member: Any) -> tuple[fx.Node, Callable[[Any], Tensor]]:
        node = self.nodes[key]
        own: Any = self.modules[str(node.target)]
        quantizer = ActivationQuantizer(member.spec, own.role, own.clip).eval()
        if not quantizer.constant and not member.spec.format.block:
            seen = self.seen[own.owner]
            quantizer.set_scale(estimate_scale(seen, member.spec, estimator_of(member.spec)))

        def function(kept: dict[fx.Node, Any]) -> Tensor:
            made: Tensor = quantizer(kept[node])
            return made

        return node, function

    def _rerun(self, kept: dict[fx.Node, Any], changed: dict[fx.Node, Tensor]) -> Tensor:
        """The output if some tensors are others: only what depends on them runs, and goes again
        when nobody reads it any more.
        """
        env, now = {**kept, **changed}, set(changed)
        self.interpreter.env = env
        for node in self.model.graph.nodes:
            if node not in now and not now.isdisjoint(node.all_input_nodes):
                env[node] = self.interpreter.run_node(node)
                now.add(node)
            for source in node.all_input_nodes:
                if source in now and self.last_readers[source] is node:
                    del env[source]
        result: Tensor = env[self.model.graph.output_node()]
        return result


def _images_at_a_time(model: fx.GraphModule, sample_shape: tuple[int, ...]) -> int:
    """Of how many images every tensor is kept: of as many as take 1 GiB, or half of the machine's
    memory where the user answers for the size (`LARGE`); of one at least.

    Raises:
        ModelError: those of one image take more than an eighth of the machine's memory (but 1 GiB
            in any case), or than half of it where the user answers for the size (`LARGE`).
    """
    sizes = [int(prod(shape)) for shape in model_shapes(model, sample_shape).values()]
    each = 4 * (sum(sizes) + max(sizes))  # of float32; one is made again
    there = machine_memory()
    room = there // 2 if is_chosen() else max(MOST_OF_A_FILE, there // 8)
    if each > room:
        raise ModelError(
            f"all tensors of one image of shape {sample_shape} take {shown(each)}, {shown(room)} "
            "are allowed: each is kept, to see what other formats make of it",
            hint=f"search on smaller images; for a model of your own: {LARGE}=1",
        )
    return max(1, min(_CHUNK, (room if is_chosen() else MOST_OF_A_FILE) // each))


@torch.no_grad()
def _quantized(layer: Any, spec: Any) -> Tensor:
    """The weight of a layer in another format."""
    quantizer = WeightQuantizer(spec, layer.weight.shape[0]).eval()
    result: Tensor = quantizer(layer.weight)
    return result


def _size(reference: Tensor, how: Damage) -> float:
    """What the squared error is divided by: the spread of the float output."""
    if how is Damage.KL:
        return 0.0
    values = reference.to(torch.float64)
    return float((values - values.mean(dim=0, keepdim=True)).square().sum())


def _damage(reference: Tensor, found: Tensor, how: Damage) -> float:
    if how is Damage.ERROR:
        return float((found.to(torch.float64) - reference.to(torch.float64)).square().sum())
    wanted = torch.log_softmax(reference.to(torch.float64).flatten(1), dim=1)
    given = torch.log_softmax(found.to(torch.float64).flatten(1), dim=1)
    return float((wanted.exp() * (wanted - given)).sum().clamp(min=0))
