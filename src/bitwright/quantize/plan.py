# SPDX-License-Identifier: Apache-2.0
"""Model + policy -> `Plan`: every match, every quantizer to make, or all that stands in the way.

Nothing is changed here. `apply` executes a plan, `explain` prints it, and an unsupported model
fails here, before any work, with all its problems at once.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.formats import Rounding
from bitwright.ir.op_activations import MAX_TABLE
from bitwright.quantize.canonicalize import Shapes, Simplified, simplify
from bitwright.quantize.decisions import Operand, Plan, Problem
from bitwright.quantize.op_checks import pads
from bitwright.quantize.op_match import AFFINE, LAYERS, PASSING, Kind, OpMatch, classify, refuse
from bitwright.quantize.plan_activations import (
    decide_activations,
    group_problems,
    is_bipolar,
    is_table,
    never_negative,
    separate_inputs,
)
from bitwright.quantize.policy import Policy
from bitwright.quantize.shapes import example_shapes
from bitwright.quantize.signals import raised
from bitwright.quantize.spec import Granularity, Layer, Role, Scope
from bitwright.quantize.trace import trace

#: Patterns of a policy times parts of a network: some ten seconds.
_MOST_COMPARED = 1 << 21
#: Letters of the patterns times letters of the paths, some nanoseconds each.
_MOST_LETTERS = 1 << 30
#: Roundings that a multiply-shift activation can have in hardware.
SHIFT_ROUNDINGS = (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR)


def make_plan(model: nn.Module, policy: Policy, example_input: Tensor | None = None) -> Plan:
    """Trace, check and decide.

    Args:
        example_input: a batch. Only needed where ``forward`` writes sizes as numbers; nothing is
            learned from its values.

    Raises:
        ModelError: it cannot be traced, or holds something that cannot be converted; all problems
            are listed, each with the layer, the user's line, the reason and what to do.
        RecipeError: the policy asks for something this model cannot have.
    """
    plan = traced_plan(model, example_input)
    _check_work(plan, policy)
    problems = match_problems(plan) or _decide(plan, policy)
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        count = "one thing" if len(problems) == 1 else f"{len(problems)} things"
        raise ModelError(
            f"{count} in this model cannot be converted:\n{listed}", where=type(model).__name__
        )
    _check_last(plan)
    _check_shift(plan, policy)
    _check_rules(plan, policy)
    return plan


def _decide(plan: Plan, policy: Policy) -> list[Problem]:
    """Fill in all decisions of a plan without problems; gives those that the policy makes."""
    separate_inputs(plan)
    for node, layer in _layers(plan).items():
        resolved = policy.resolve(layer, Role.WEIGHT)
        plan.weights[node] = Operand(layer, Role.WEIGHT, resolved.spec, resolved.reason)
        if getattr(plan.modules[layer.path], "bias", None) is not None:
            found = policy.resolve(layer, Role.BIAS)
            plan.biases[node] = Operand(layer, Role.BIAS, found.spec, found.reason)
    decide_activations(plan, policy)
    problems = _grid_problems(plan) + _weight_problems(plan) + group_problems(plan)
    return problems + _table_problems(plan, policy)


def traced_plan(model: nn.Module, example_input: Tensor | None = None) -> Plan:
    """The matches of a model, nothing decided yet; a match without a kind holds its problem.

    Raises:
        ModelError: the model cannot be traced, or the example does not pass.
    """
    model = raised(model, example_input)
    graph = trace(model)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)  # a result that forward computes and drops
    modules = dict(model.named_modules())
    shapes: Shapes = {}
    if example_input is not None:
        shapes = example_shapes(model, graph, example_input)
    simplified = simplify(graph, shapes)
    matches = {node: _match(node, modules, simplified) for node in graph.nodes}
    return Plan(graph, matches, modules)


def _match(node: fx.Node, modules: dict[str, nn.Module], simplified: Simplified) -> OpMatch:
    if node in simplified.quiet:
        return OpMatch(node, Kind.SIZE, node.name, "size")
    match = classify(node, modules)
    complaint = simplified.problems.get(node)
    if complaint is None and simplified.quiet.intersection(node.all_input_nodes):
        if match.kind is not Kind.FLATTEN:
            complaint = (
                "it depends on the size of the input",
                "pass example_input to apply (a recipe knows it from its data), or write the "
                "number out",
            )
    return match if complaint is None else refuse(node, match.path, match.type, *complaint)


def match_problems(plan: Plan) -> list[Problem]:
    """Everything that has no few-bit form whatever the policy."""
    found = [
        Problem(match, match.problem, match.advice)
        for match in plan.matches.values()
        if match.kind is None
    ]
    return found + _structure_problems(plan)


def _structure_problems(plan: Plan) -> list[Problem]:
    """Shared layers and several inputs."""
    problems = []
    calls = Counter(str(n.target) for n in plan.graph.nodes if n.op == "call_module")
    stateful = (*LAYERS, Kind.BATCH_NORM)
    for node, match in plan.matches.items():
        if match.kind in stateful and calls[str(node.target)] > 1:
            what, advice = "the layer is used more than once", "make one for each use"
            problems.append(Problem(match, what, advice))
            calls[str(node.target)] = 0
    inputs = [match for match in plan.matches.values() if match.kind is Kind.INPUT]
    if len(inputs) != 1:
        names = ", ".join(match.path for match in inputs) or "none"
        what = f"forward takes {len(inputs)} inputs ({names})"
        problems.append(Problem(None, what, "it must take exactly one"))
    return problems


def _layers(plan: Plan) -> dict[fx.Node, Layer]:
    """Conv and linear nodes with their place: first in order, last before the output."""
    nodes = [node for node, match in plan.matches.items() if match.kind in LAYERS]
    last = _before_output(plan)
    return {
        node: Layer(
            plan.matches[node].path,
            plan.matches[node].type,
            first=index == 0,
            last=node in last if last else index == len(nodes) - 1,
        )
        for index, node in enumerate(nodes)
    }


def _before_output(plan: Plan) -> set[fx.Node]:
    """The layers whose accumulators are the scores."""
    found, seen, queue = set(), set[fx.Node](), [plan.output]
    through = (*PASSING, *AFFINE, Kind.ADD, Kind.AVG_POOL)
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        match = plan.matches[node]
        if match.kind in LAYERS:
            found.add(node)
        elif match.kind in through:
            queue.extend(match.operands)
    return found


def _weight_problems(plan: Plan) -> list[Problem]:
    """Weights that no format can hold, and codebooks with more entries than there are weights."""
    problems = []
    for node, operand in plan.weights.items():
        weight = plan.modules[operand.layer.path].weight.detach()
        if not bool(torch.isfinite(weight).all()):
            what = "its weight holds NaN or infinity"
            problems.append(Problem(plan.matches[node], what, "train again, or load other weights"))
        spec = operand.spec
        if spec is None or not spec.format.is_codebook:
            continue
        if spec.scope is Scope.LAYER and spec.format.entries > weight.numel():
            what = f"{spec.format} has more entries than the layer has weights, {weight.numel()}"
            problems.append(Problem(plan.matches[node], what, "choose a smaller codebook for it"))
    return problems


def _grid_problems(plan: Plan) -> list[Problem]:
    """Zero padding of what cannot hold a zero, or where a zero is not neutral."""
    problems = []
    for node, match in plan.matches.items():
        layer = match.replacement or plan.modules.get(match.path)
        if match.kind in (Kind.CONV, Kind.AVG_POOL, Kind.PAD) and pads(layer):
            if is_bipolar(plan, match.operands[0]):
                what = "it pads with zeros, which its bipolar input cannot represent"
                advice = "use padding=0, or another activation format before this layer"
                problems.append(Problem(match, what, advice))
        if match.kind is Kind.PAD:
            problems += [_pad_problem(plan, match, plan.matches[user]) for user in node.users]
    return [problem for problem in problems if problem is not None]


def _pad_problem(plan: Plan, pad: OpMatch, user: OpMatch) -> Problem | None:
    """A border is made by the layer behind it."""
    layer = user.replacement or plan.modules.get(user.path)
    if user.kind is Kind.MAX_POOL and not never_negative(plan, pad.operands[0]):
        what = f"zeros around values that may be negative, in front of the max pool {user.path}"
        return Problem(pad, what, "pad in the pool itself, or put a ReLU before")
    if user.kind is Kind.AVG_POOL and not isinstance(layer, nn.AvgPool2d):
        return Problem(pad, f"it is averaged over by {user.path}", "use nn.AvgPool2d")
    if user.kind in (Kind.CONV, Kind.MAX_POOL, Kind.AVG_POOL, Kind.PAD):
        return None
    what = f"it is read by {user.path} ({user.type})"
    return Problem(pad, what, "put it directly in front of a convolution or pool")


def _check_last(plan: Plan) -> None:
    """Scores that are compared share one scale: per-tensor weights, no batch norm behind them."""
    node = plan.source(plan.output)
    match = plan.matches[node]
    if match.kind is Kind.SCALE:
        raise ModelError(
            "the scores are scaled or shifted after the last layer",
            where=match.place,
            hint="leave that to the loss, or to whoever reads the scores",
        )
    if match.kind is Kind.BATCH_NORM and _before_output(plan):
        raise ModelError(
            "batch norm after the last layer gives every score a scale of its own",
            where=match.place,
            hint="remove it: the last layer has a bias, and the loss takes care of the scale",
        )
    if match.kind not in LAYERS or _is_image(plan, node):
        return
    spec = plan.weights[node].spec
    if spec is not None and spec.granularity is Granularity.PER_CHANNEL:
        raise RecipeError(
            f"the scores of the last layer {match.path!r} would have a scale per channel",
            where=plan.weights[node].reason,
            hint="give its weight granularity per_tensor (the default for the last layer)",
        )


def _is_image(plan: Plan, last: fx.Node) -> bool:
    """Whether the scores are an image: a convolution's, not flattened."""
    node = plan.output
    while node is not last:
        if plan.matches[node].kind is Kind.FLATTEN:
            return False
        (node,) = plan.matches[node].operands
    return plan.matches[last].kind is Kind.CONV


def _check_shift(plan: Plan, policy: Policy) -> None:
    for operand in plan.activations.values():
        spec = operand.spec
        if operand.role is Role.INPUT or spec is None:
            continue
        floats = spec.format.is_float and spec.format.exact_levels
        if spec.format.bits <= policy.threshold_bits and not floats:
            continue
        if spec.rounding not in SHIFT_ROUNDINGS:
            names = ", ".join(mode.value for mode in SHIFT_ROUNDINGS)
            raise RecipeError(
                f"{operand.layer.path}: rounding {spec.rounding.value!r} of {spec.format} has no "
                f"multiply-shift form (formats above {policy.threshold_bits} bits)",
                where="quant.activation.rounding",
                hint=f"one of {names}; or raise threshold_bits",
            )


def _table_problems(plan: Plan, policy: Policy) -> list[Problem]:
    """Tables over formats whose levels reach too far: those of a wide float are few, but apart."""
    problems = []
    for node, match in plan.matches.items():
        if match.kind is not Kind.ACTIVATION or not is_table(plan, policy, node):
            continue
        for leaf in plan.leaves(match.operands[0]):
            spec = plan.activations[leaf].spec if leaf in plan.activations else None
            if spec is None or spec.zero_point:
                continue
            reach = spec.format.max_level - spec.lowest + 1
            if reach > MAX_TABLE:
                what = f"it becomes a table over {spec.format.name} numbers, which span {reach} "
                what += f"units of their step; a table has at most {MAX_TABLE} entries"
                advice = f"give {plan.matches[leaf].place} a narrower format, such as int8"
                problems.append(Problem(match, what, advice))
                break
    return problems


def _check_work(plan: Plan, policy: Policy) -> None:
    """Refuse a policy, perhaps of a stranger's file, whose patterns take minutes to be compared
    with all layers.
    """
    letters = policy.letters * sum(len(match.path) for match in plan.matches.values())
    if policy.patterns * len(plan.matches) > _MOST_COMPARED or letters > _MOST_LETTERS:
        raise RecipeError(
            f"{policy.patterns} rules with patterns for {len(plan.matches)} layers; their product "
            f"may be {_MOST_COMPARED}, and that of the letters of both {_MOST_LETTERS}",
            where="quant.rules",
            hint="name the layers, each by its path, or leave rules out",
        )


def _check_rules(plan: Plan, policy: Policy) -> None:
    """A rule about named layers that fits none of them is a mistake in the recipe."""
    operands = [*plan.weights.values(), *plan.biases.values(), *plan.activations.values()]
    every: dict[Role, list[Layer]] = {}
    named: dict[tuple[Role, str], list[Layer]] = {}
    for operand in operands:
        every.setdefault(operand.role, []).append(operand.layer)
        named.setdefault((operand.role, operand.layer.path), []).append(operand.layer)
    for rule in policy.rules:
        if rule.selector.layers == "*" and rule.selector.type is None:
            continue
        layers = every.get(rule.role, [])
        asked = named.get((rule.role, rule.selector.layers), [])
        asked = asked if rule.selector.is_plain else layers
        if not any(rule.selector.matches(layer) for layer in asked):
            names = ", ".join(f"{layer.path} ({layer.type})" for layer in layers)
            raise RecipeError(
                f"the rule for {rule.role.value} of {rule.selector} matches no layer",
                where=rule.where,
                hint=f"layers with a {rule.role.value}: {names or 'none'}",
            )
