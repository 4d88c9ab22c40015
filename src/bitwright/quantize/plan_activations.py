# SPDX-License-Identifier: Apache-2.0
"""Which tensors are quantized, and which quantizers share a scale.

Quantized are the input, every activation, and whatever a layer, a sum, a concatenation, an average
or a table reads that is not quantized yet: there a quantizer is inserted. A product, a sum and a
table need levels of one scale; if they read a concatenation, the quantizers in front of it share
one (`common_concats`). Where only batch norm, activations, averages or depthwise products read it,
each keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from bitwright.formats import IntegerFormat
from bitwright.quantize.decisions import Operand, Plan, Problem
from bitwright.quantize.joins import GlobalAverage
from bitwright.quantize.op_match import (
    AFFINE,
    JOINS,
    LAYERS,
    PASSING,
    Clip,
    Kind,
    OpMatch,
    copy_tensor,
)
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.sign_fit import fit
from bitwright.quantize.spec import Change, Layer, Resolved, Role, ScaleRule

#: Bits of the quantizer in front of an activation that becomes a table, unless a rule for
#: ``LAYER.input`` says otherwise.
TABLE_BITS = 8
_POSITIVE = Clip(0.0, math.inf)
_SUMS = (Kind.ADD, Kind.CAT, Kind.AVG_POOL, Kind.COPY)  # of what is in front of them


def decide_activations(plan: Plan, policy: Policy) -> None:
    """Fill in ``activations``, ``clips``, ``groups`` and ``joins``."""
    for node, match in plan.matches.items():
        if match.kind is Kind.INPUT:
            layer = Layer(match.path, "input", first=True)
            resolved = policy.resolve(layer, Role.INPUT)
            plan.activations[node] = Operand(layer, Role.INPUT, resolved.spec, resolved.reason)
            plan.clips[node] = None
        elif match.kind is Kind.ACTIVATION:
            layer = Layer(match.path, match.type)
            clip = _clip(match)
            fitted = fit(policy.resolve(layer, Role.ACTIVATION), clip, match.type)
            plan.activations[node] = Operand(layer, Role.ACTIVATION, fitted.spec, fitted.reason)
            plan.clips[node] = clip
    for node, match in plan.matches.items():
        table = is_table(plan, policy, node)
        if table or match.kind in (*LAYERS, *JOINS) or _loses(plan, node):
            plan.readers.add(node)
            for operand in match.operands:
                _insert(plan, policy, node, operand, table)
    _group(plan, common_concats(plan, policy))
    for node, match in plan.matches.items():
        if match.kind in JOINS:
            plan.joins[node] = _join_note(plan, node, match)


def _clip(match: OpMatch) -> Clip | None:
    if match.function is not None:
        return _POSITIVE if match.function.positive else None
    return match.clip


def is_table(plan: Plan, policy: Policy, node: fx.Node) -> bool:
    """Whether an activation becomes a table over a quantized input: not monotone, or many bits."""
    function = plan.matches[node].function
    if function is None or plan.activations[node].spec is None:
        return False
    chosen = plan.activations[node].spec.format
    many = chosen.bits > policy.threshold_bits or not chosen.uniform
    return not function.monotone or many


def _loses(plan: Plan, node: fx.Node) -> bool:
    """Whether something would be lost if a node did not read levels."""
    return _loses_scale(plan, node) or _turns_maximum(plan, node)


def _turns_maximum(plan: Plan, node: fx.Node) -> bool:
    """Whether a maximum lies between two factors per channel, either of which may be negative."""
    match = plan.matches[node]
    if match.kind not in AFFINE:
        return False
    pooled, source = False, match.operands[0]
    while plan.matches[source].kind in PASSING:
        pooled = pooled or plan.matches[source].kind is Kind.MAX_POOL
        source = plan.matches[source].operands[0]
    return pooled and plan.matches[source].kind in AFFINE


def _loses_scale(plan: Plan, node: fx.Node) -> bool:
    """Whether a node moves elements between channels that still have a scale or offset each."""
    match = plan.matches[node]
    if match.kind not in (Kind.FLATTEN, Kind.REARRANGE):
        return False
    if not _leads_beyond(plan, node):
        return False
    source = plan.source(node)
    if plan.matches[source].kind in AFFINE:
        return True
    if plan.matches[source].kind not in LAYERS:
        return False
    spec = plan.weights[source].spec
    biased = getattr(plan.modules[plan.matches[source].path], "bias", None) is not None
    return spec is not None and (biased or spec.granularity.value == "per_channel")


def _leads_beyond(plan: Plan, node: fx.Node) -> bool:
    """Whether anything but the output reads what passes through a node."""
    return plan.is_read_by(
        node, lambda user: plan.matches[user].kind not in {*PASSING, Kind.OUTPUT}
    )


def _insert(
    plan: Plan, policy: Policy, consumer: fx.Node, operand: fx.Node, table: bool = False
) -> None:
    source = plan.source(operand)
    if source in plan.activations or plan.matches[source].kind is Kind.CAT:
        return
    match = plan.matches[source]
    layer = Layer(match.path, match.type)
    resolved = policy.resolve(layer, Role.ACTIVATION)
    reader = plan.matches[consumer]
    if table:
        layer, resolved = _table_input(policy, reader, resolved)
    clip = _POSITIVE if never_negative(plan, source) else None
    why = f"feeds {reader.path} without an activation; {resolved.reason}"
    fitted = fit(Resolved(resolved.spec, why), clip, match.type)
    plan.activations[source] = Operand(layer, Role.ACTIVATION, fitted.spec, fitted.reason)
    plan.clips[source] = clip


def _table_input(policy: Policy, reader: OpMatch, resolved: Resolved) -> tuple[Layer, Resolved]:
    """The input of a table: ``TABLE_BITS`` at least, or what a rule for ``LAYER.input`` says."""
    layer = Layer(f"{reader.path}.input", reader.type)
    if any(
        rule.selector.layers.endswith(".input") and rule.selector.matches(layer)
        for rule in policy.rules_of(Role.ACTIVATION, layer.path)
    ):
        return layer, policy.resolve(layer, Role.ACTIVATION)
    spec = resolved.spec
    if spec is None or (spec.format.bits >= TABLE_BITS and spec.format.is_integer):
        return layer, resolved
    wide = complete(Change(format=IntegerFormat(TABLE_BITS, True)), Role.ACTIVATION, layer.path)
    why = f"the input of a table has {TABLE_BITS} bits; a rule for {layer.path} can change that"
    return layer, Resolved(wide, why)


def never_negative(plan: Plan, node: fx.Node) -> bool:
    """Whether a tensor can only be zero or above."""
    waiting, seen = [plan.source(node)], set[fx.Node]()  # each once: there may be 2^n ways to one
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        match, clip = plan.matches[node], plan.clips.get(node)
        operand = plan.activations.get(node)
        if operand is not None and operand.spec is not None:
            if operand.spec.format.min_level < 0 or operand.spec.zero_point:
                return False
        elif clip is not None:
            if clip.low < 0:
                return False
        elif match.kind in _SUMS and match.sign > 0:
            waiting += map(plan.source, match.operands)
        else:
            return False
    return True


def common_concats(plan: Plan, policy: Policy | None) -> set[fx.Node]:
    """The concatenations whose parts must have one scale: all, if the policy says so."""
    found: set[fx.Node] = set()
    if policy is not None and policy.concat_scales == "shared":
        found |= {node for node, match in plan.matches.items() if match.kind is Kind.CAT}
    for tensor, through in _demands(plan, policy):
        _mark(plan, tensor, through, found)
    return found


def _demands(plan: Plan, policy: Policy | None) -> Iterator[tuple[fx.Node, bool]]:
    """Tensors that must have one scale; and whether that also holds for what they average."""
    for node, match in plan.matches.items():
        if match.kind is Kind.CONV:
            if not plan.is_depthwise(node) or plan.source(plan.output) is node:
                yield match.operands[0], False
        elif match.kind in (Kind.LINEAR, Kind.ADD, Kind.OWN):
            yield from ((operand, False) for operand in match.operands)
        elif match.kind in (Kind.FLATTEN, Kind.REARRANGE, Kind.OUTPUT) or _flattens(match):
            yield match.operands[0], True
        elif match.function is not None and (policy is None or is_table(plan, policy, node)):
            yield match.operands[0], False


def _flattens(match: OpMatch) -> bool:
    """Whether an average gives a vector: ``mean((2, 3))``."""
    return isinstance(match.replacement, GlobalAverage) and not match.replacement.keep


def _mark(plan: Plan, tensor: fx.Node, through: bool, found: set[fx.Node]) -> None:
    waiting = [(tensor, through)]
    while waiting:
        tensor, through = waiting.pop()
        source = plan.source(tensor)
        match = plan.matches[source]
        if match.kind is Kind.CAT:  # once: there may be 2^n ways to one
            waiting += [(part, False) for part in match.operands if source not in found]
            found.add(source)
        elif match.kind is Kind.AVG_POOL and through and source not in plan.activations:
            waiting.append((match.operands[0], True))


def separate_inputs(plan: Plan) -> None:
    """Give the input a second quantizer where it is concatenated with features on one scale.

    Its own scale comes from the data; the features' is trained.
    """
    for concat in common_concats(plan, None):
        for part in set(plan.matches[concat].operands):
            if plan.matches[plan.source(part)].kind is not Kind.INPUT:
                continue
            with plan.graph.inserting_before(concat):
                copied = plan.graph.call_function(copy_tensor, (part,))
            copied.meta = {k: v for k, v in concat.meta.items() if k == "stack_trace"}
            concat.replace_input_with(part, copied)
            old = plan.matches[concat]
            operands = tuple(copied if o is part else o for o in old.operands)
            plan.matches[concat] = replace(old, operands=operands)
            plan.matches[copied] = OpMatch(copied, Kind.COPY, f"{old.path}_input", "copy", (part,))


def _group(plan: Plan, concats: set[fx.Node]) -> None:
    """Unite the quantizers in front of each concatenation; overlapping sets become one."""
    groups: list[set[fx.Node]] = []
    for concat in concats:
        members = {leaf for leaf in plan.leaves(concat) if _has_spec(plan, leaf)}
        for other in [group for group in groups if group & members]:
            members |= other
            groups.remove(other)
        groups.append(members)
    place = {node: index for index, node in enumerate(plan.matches)}
    plan.groups = [sorted(group, key=place.__getitem__) for group in groups if len(group) > 1]
    for group in plan.groups:
        for node in group:
            operand = plan.activations[node]
            others = ", ".join(plan.matches[n].path for n in group if n is not node)
            why = f"{operand.reason}; one scale with {others}, concatenated before a product"
            plan.activations[node] = replace(operand, reason=why)


def _has_spec(plan: Plan, node: fx.Node) -> bool:
    return node in plan.activations and plan.activations[node].spec is not None


def group_problems(plan: Plan) -> list[Problem]:
    """Constant scales that cannot be brought to one, and zero points that do not follow one."""
    problems = []
    for group in plan.groups:
        affine = _affine_problem(plan, group)
        if affine is not None:
            problems.append(affine)
        units = {}
        for node in group:
            spec = plan.activations[node].spec
            if spec is not None and spec.scale.value == "const":
                units[plan.matches[node].place] = spec.value * spec.format.lsb
        if len(set(units.values())) > 1:
            listed = ", ".join(f"{place} has {unit:g}" for place, unit in units.items())
            problems.append(
                Problem(
                    plan.matches[group[0]],
                    "constant scales differ in front of a concatenation that a product reads: "
                    f"{listed}",
                    "give them one scale, or use a learned one",
                )
            )
    return problems


def _affine_problem(plan: Plan, group: list[fx.Node]) -> Problem | None:
    """A zero point follows from the scale of the group and from a minimum of its own, which only
    ``minmax`` keeps for every part.
    """
    specs = [plan.activations[node].spec for node in group]
    rules = {spec.scale for spec in specs if spec is not None}
    if not any(spec is not None and spec.zero_point for spec in specs):
        return None
    if rules == {ScaleRule.MINMAX}:
        return None
    listed = ", ".join(sorted(rule.value for rule in rules))
    return Problem(
        plan.matches[group[0]],
        "it has a zero point, and shares its scale in front of a concatenation that a product "
        f"reads (scale: {listed})",
        "use scale: minmax for all parts, or zero_point: false",
    )


def _join_note(plan: Plan, node: fx.Node, match: OpMatch) -> Operand:
    layer = Layer(match.path, match.type)
    if match.kind is Kind.ADD:
        reason = "exact sum; integer multipliers bring the operands' scales to one"
    elif match.kind is Kind.AVG_POOL:
        reason = "exact sum; the window's size is divided out by the scale"
    elif match.kind is Kind.OWN:
        reason = f"by the rule that {match.type} was registered with"
    else:
        shared = [group for group in plan.groups if set(plan.leaves(node)) & set(group)]
        reason = "parts share one scale" if shared else "each part keeps its scale"
    return Operand(layer, Role.ACCUMULATOR, None, reason)


def is_bipolar(plan: Plan, node: fx.Node) -> bool:
    """Whether any part of a tensor has a format without a zero."""
    operands = [plan.activations.get(leaf) for leaf in plan.leaves(node)]
    return any(o is not None and o.spec is not None and o.spec.format.sign_only for o in operands)
