# SPDX-License-Identifier: Apache-2.0
"""Model + policy -> `Plan`: every site, every quantizer to make, or all that stands in the way.

Nothing is changed here. `apply` executes a plan, `explain` prints it, and an unsupported model
fails here, before any work, with all its problems at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from torch import fx, nn

from bitwright.errors import ModelError, RecipeError
from bitwright.formats import (
    BipolarFormat,
    FixedFormat,
    Format,
    IntegerFormat,
    Rounding,
    TernaryFormat,
)
from bitwright.quant.policy import Granularity, Layer, Policy, QuantSpec, Resolved, Role
from bitwright.quant.sites import PASSING, TRAIN_ONLY, Clip, Kind, Site, classify
from bitwright.quant.trace import trace

#: Roundings that a multiply-shift activation can have in hardware.
SHIFT_ROUNDINGS = (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR)
_LAYERS = (Kind.CONV, Kind.LINEAR)


@dataclass(frozen=True)
class Operand:
    """The decision for one operand of one layer."""

    layer: Layer
    role: Role
    spec: QuantSpec | None
    reason: str


@dataclass
class Plan:
    """All decisions about one model.

    Attributes:
        graph: the traced graph.
        sites: one a node, in execution order.
        weights: decision for each conv and linear node.
        activations: decision for each node whose output is quantized (activations, the input, and
            other nodes that feed a layer without an activation in between).
        clips: the interval kept by each of those.
        notes: what stays as it is although one may expect otherwise; for `explain`.
    """

    graph: fx.Graph
    sites: dict[fx.Node, Site]
    weights: dict[fx.Node, Operand] = field(default_factory=dict)
    activations: dict[fx.Node, Operand] = field(default_factory=dict)
    clips: dict[fx.Node, Clip | None] = field(default_factory=dict)
    notes: list[Operand] = field(default_factory=list)

    def source(self, node: fx.Node) -> fx.Node:
        """The node whose grid ``node`` carries: upstream through pools, flatten and dropout."""
        while node in self.sites and self.sites[node].kind in PASSING:
            node = node.args[0]
        return node


def make_plan(model: nn.Module, policy: Policy) -> Plan:
    """Trace, check and decide.

    Raises:
        ModelError: it cannot be traced, or holds something that cannot be converted; all problems
            are listed, each with the layer, the user's line, the reason and what to do.
        RecipeError: the policy asks for something this model cannot have.
    """
    graph = trace(model)
    modules = dict(model.named_modules())
    sites = {node: classify(node, modules) for node in graph.nodes}
    plan = Plan(graph, sites)
    problems = [
        f"{site.place}: {site.problem}; {site.advice}"
        for site in sites.values()
        if site.kind is None
    ]
    problems += _structure_problems(plan)
    if problems:
        _fail(model, problems)
    layers = _layers(plan)
    for node, layer in layers.items():
        resolved = policy.resolve(layer, Role.WEIGHT)
        plan.weights[node] = Operand(layer, Role.WEIGHT, resolved.spec, resolved.reason)
    _decide_activations(plan, policy)
    problems = _grid_problems(plan, modules)
    if problems:
        _fail(model, problems)
    _check_last(plan)
    _check_shift(plan, policy)
    _check_rules(plan, policy)
    return plan


def _fail(model: nn.Module, problems: list[str]) -> None:
    listed = "\n".join(f"  - {problem}" for problem in problems)
    count = "one thing" if len(problems) == 1 else f"{len(problems)} things"
    raise ModelError(
        f"{count} in this model cannot be converted:\n{listed}", where=type(model).__name__
    )


def _structure_problems(plan: Plan) -> list[str]:
    """Shared layers and several inputs."""
    problems = []
    calls = Counter(str(n.target) for n in plan.graph.nodes if n.op == "call_module")
    stateful = (Kind.CONV, Kind.LINEAR, Kind.BATCH_NORM)
    for node, site in plan.sites.items():
        if site.kind in stateful and calls[str(node.target)] > 1:
            problems.append(
                f"{site.place}: the layer is used more than once; make one for each use"
            )
            calls[str(node.target)] = 0
    inputs = [site for site in plan.sites.values() if site.kind is Kind.INPUT]
    if len(inputs) != 1:
        names = ", ".join(site.path for site in inputs) or "none"
        problems.append(f"forward takes {len(inputs)} inputs ({names}); it must take exactly one")
    return problems


def _layers(plan: Plan) -> dict[fx.Node, Layer]:
    """Conv and linear nodes with their place: first in order, last before the output."""
    nodes = [node for node, site in plan.sites.items() if site.kind in _LAYERS]
    last = _before_output(plan)
    return {
        node: Layer(
            plan.sites[node].path,
            plan.sites[node].type,
            first=index == 0,
            last=node in last if last else index == len(nodes) - 1,
        )
        for index, node in enumerate(nodes)
    }


def _before_output(plan: Plan) -> set[fx.Node]:
    """The layers whose accumulators are the scores."""
    found, queue = set(), [plan.graph.output_node().args[0]]
    through = (*PASSING, Kind.BATCH_NORM, Kind.ADD, Kind.AVG_POOL)
    while queue:
        node = queue.pop()
        if not isinstance(node, fx.Node):
            continue
        if plan.sites[node].kind in _LAYERS:
            found.add(node)
        elif plan.sites[node].kind in through:
            queue.extend(node.all_input_nodes)
    return found


def _decide_activations(plan: Plan, policy: Policy) -> None:
    """The input, every written activation, and whatever else feeds a layer unquantized."""
    for node, site in plan.sites.items():
        if site.kind is Kind.INPUT:
            layer = Layer(site.path, "input", first=True)
            resolved = policy.resolve(layer, Role.INPUT)
            plan.activations[node] = Operand(layer, Role.INPUT, resolved.spec, resolved.reason)
            plan.clips[node] = None
        elif site.kind is Kind.ACTIVATION:
            layer = Layer(site.path, site.type)
            resolved = policy.resolve(layer, Role.ACTIVATION)
            fitted = _fit(resolved, site.clip, site.type)
            plan.activations[node] = Operand(layer, Role.ACTIVATION, fitted.spec, fitted.reason)
            plan.clips[node] = site.clip
    for node, site in plan.sites.items():
        if site.kind in _LAYERS:
            _decide_inserted(plan, policy, node)
        elif site.kind is Kind.ADD:
            reason = "operands of an addition stay float; its sum is quantized by what follows"
            plan.notes.append(Operand(Layer(site.path, "add"), Role.ACTIVATION, None, reason))


def _decide_inserted(plan: Plan, policy: Policy, consumer: fx.Node) -> None:
    source = plan.source(consumer.args[0])
    if source in plan.activations or _all_quantized(plan, source):
        return
    site = plan.sites[source]
    layer = Layer(site.path, site.type)
    resolved = policy.resolve(layer, Role.ACTIVATION)
    clip = Clip(0.0, float("inf")) if _never_negative(plan, source) else None
    why = f"feeds {plan.sites[consumer].path} without an activation; {resolved.reason}"
    fitted = _fit(Resolved(resolved.spec, why), clip, site.type)
    plan.activations[source] = Operand(layer, Role.ACTIVATION, fitted.spec, fitted.reason)
    plan.clips[source] = clip


def _all_quantized(plan: Plan, node: fx.Node) -> bool:
    """A concatenation of quantized tensors is quantized, though on several grids."""
    if plan.sites[node].kind is not Kind.CAT:
        return False
    parts = [plan.source(part) for part in node.all_input_nodes]
    return all(
        (part in plan.activations and plan.activations[part].spec is not None)
        or _all_quantized(plan, part)
        for part in parts
    )


def _never_negative(plan: Plan, node: fx.Node) -> bool:
    node = plan.source(node)
    kind, clip = plan.sites[node].kind, plan.clips.get(node)
    if clip is not None:
        return clip.low >= 0
    if kind in (Kind.ADD, Kind.CAT, Kind.AVG_POOL):
        return all(_never_negative(plan, part) for part in node.all_input_nodes)
    return False


def _fit(resolved: Resolved, clip: Clip | None, name: str) -> Resolved:
    """Match the sign of the format to the activation as it is written."""
    spec, reason = resolved.spec, resolved.reason
    if clip is not None and clip.sign:
        if spec is not None and isinstance(spec.format, BipolarFormat):
            return resolved
        raise RecipeError(
            f"{name} has two values, so its activation must be bipolar, not "
            f"{'float' if spec is None else spec.format}",
            where="quant.activation",
        )
    if spec is None or isinstance(spec.format, BipolarFormat):
        return resolved
    positive = clip is not None and clip.low >= 0
    fitted = _without_negative(spec.format) if positive else _with_negative(spec.format)
    if fitted == spec.format:
        return resolved
    why = f"{name} never goes below zero" if positive else f"{name} also goes below zero"
    return Resolved(replace(spec, format=fitted), f"{why}: {spec.format} -> {fitted}; {reason}")


def _without_negative(number_format: Format) -> Format:
    """The non-negative half of a signed format: the same levels in one bit less."""
    if isinstance(number_format, TernaryFormat):
        return IntegerFormat(1, False)
    if isinstance(number_format, IntegerFormat) and number_format.signed and number_format.bits > 1:
        return IntegerFormat(number_format.bits - 1, False)
    if isinstance(number_format, FixedFormat) and number_format.signed and number_format.bits > 1:
        return FixedFormat(number_format.bits - 1, number_format.integer - 1, False)
    return number_format


def _with_negative(number_format: Format) -> Format:
    """An unsigned format of the same width with a sign."""
    if isinstance(number_format, IntegerFormat) and not number_format.signed:
        if number_format.bits == 1:
            raise RecipeError(
                "uint1 cannot hold a negative activation",
                where="quant.activation",
                hint="use bipolar, ternary or int2, or put a ReLU before the layer",
            )
        return IntegerFormat(number_format.bits, True)
    if isinstance(number_format, FixedFormat) and not number_format.signed:
        return FixedFormat(number_format.bits, number_format.integer, True)
    return number_format


def _grid_problems(plan: Plan, modules: dict[str, nn.Module]) -> list[str]:
    """Zero padding of a format without a zero."""
    problems = []
    for node, site in plan.sites.items():
        if site.kind is not Kind.CONV:
            continue
        operand = plan.activations.get(plan.source(node.args[0]))
        spec = operand.spec if operand is not None else None
        if spec is None or spec.format.zero_is_representable:
            continue
        if _is_padded(modules[site.path]):
            problems.append(
                f"{site.place}: it pads with zeros, which its {spec.format} input cannot "
                "represent; use padding=0, or another activation format before this layer"
            )
    return problems


def _is_padded(conv: nn.Module) -> bool:
    padding = conv.padding
    if isinstance(padding, str):
        return padding == "same" and any(k > 1 for k in conv.kernel_size)
    return any(p > 0 for p in padding)


def _check_last(plan: Plan) -> None:
    """The scores must share one scale: per-tensor weights, no batch norm after the last layer."""
    node = plan.source(plan.graph.output_node().args[0])
    site = plan.sites[node]
    if site.kind is Kind.BATCH_NORM and _before_output(plan):
        raise ModelError(
            "batch norm after the last layer gives every score a scale of its own",
            where=site.place,
            hint="remove it: the last layer has a bias, and the loss takes care of the scale",
        )
    if site.kind not in _LAYERS:
        return
    spec = plan.weights[node].spec
    if spec is not None and spec.granularity is Granularity.PER_CHANNEL:
        raise RecipeError(
            f"the scores of the last layer {site.path!r} would have a scale per channel",
            where=plan.weights[node].reason,
            hint="give its weight granularity per_tensor (the default for the last layer)",
        )


def _check_shift(plan: Plan, policy: Policy) -> None:
    for operand in plan.activations.values():
        spec = operand.spec
        if operand.role is Role.INPUT or spec is None or spec.format.bits <= policy.threshold_bits:
            continue
        if spec.rounding not in SHIFT_ROUNDINGS:
            names = ", ".join(mode.value for mode in SHIFT_ROUNDINGS)
            raise RecipeError(
                f"{operand.layer.path}: rounding {spec.rounding.value!r} of {spec.format} has no "
                f"multiply-shift form (formats above {policy.threshold_bits} bits)",
                where="quant.activation.rounding",
                hint=f"one of {names}; or raise threshold_bits",
            )


def _check_rules(plan: Plan, policy: Policy) -> None:
    """A rule about named layers that fits none of them is a mistake in the recipe."""
    operands = [*plan.weights.values(), *plan.activations.values()]
    for rule in policy.rules:
        if rule.selector.layers == "*" and rule.selector.type is None:
            continue
        layers = [operand.layer for operand in operands if operand.role is rule.role]
        if not any(rule.selector.matches(layer) for layer in layers):
            names = ", ".join(f"{layer.path} ({layer.type})" for layer in layers)
            raise RecipeError(
                f"the rule for {rule.role.value} of {rule.selector} matches no layer",
                where=rule.where,
                hint=f"layers with a {rule.role.value}: {names or 'none'}",
            )


def train_only_sites(plan: Plan) -> list[Site]:
    """The sites that cannot be frozen yet."""
    return [site for site in plan.sites.values() if site.kind in TRAIN_ONLY]
