# SPDX-License-Identifier: Apache-2.0
"""What a policy makes of a model, in rows, before anything is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.quantize.decisions import Operand, Plan, Problem
from bitwright.quantize.op_match import Kind, OpMatch
from bitwright.quantize.plan import check, decide, make_plan, match_problems, traced_plan
from bitwright.quantize.plan_activations import is_table
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_defaults import simulated_only
from bitwright.quantize.spec import OPERAND_ROLES, PRODUCT_ROLES, RESULT_ROLES, Layer
from bitwright.quantize.trace import user_line


@dataclass(frozen=True)
class Row:
    """One operand of one layer: what it becomes, and why."""

    layer: str
    type: str
    operand: str
    format: str
    granularity: str
    scale: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def explain(model: nn.Module, policy: Policy, example_input: Tensor | None = None) -> list[Row]:
    """Every operand in execution order, the bias, joins and what stays float included; with a
    policy for training, what the products of every layer take and give, in order of registration.

    Args:
        example_input: needed only where ``forward`` writes sizes as numbers; see `apply`.

    Raises:
        ModelError, RecipeError: as `inspect_model`.
    """
    if policy.training:
        return _training_rows(model, policy)
    plan = make_plan(model, policy, example_input)
    rows = []
    for node in plan.graph.nodes:
        if node in plan.weights:
            rows.append(_row(plan.weights[node]))
            layer = model.get_submodule(str(node.target))
            if getattr(layer, "bias", None) is not None:
                stays = node is plan.source(plan.output)
                rows.append(_bias_row(plan.weights[node], plan.biases.get(node), stays))
        if node in plan.joins:
            rows.append(_row(plan.joins[node]))
        if node in plan.activations:
            rows.append(_row(plan.activations[node]))
    return rows


def _training_rows(model: nn.Module, policy: Policy) -> list[Row]:
    """One row for each role of each layer, or one a product where products differ."""
    kinds = {nn.Conv2d: "Conv2d", nn.Linear: "Linear"}
    found = [
        (path, next(name for kind, name in kinds.items() if isinstance(module, kind)))
        for path, module in model.named_modules()
        if isinstance(module, tuple(kinds))
    ]
    rows = []
    for place, (path, kind) in enumerate(found):
        layer = Layer(path, kind, place == 0, place == len(found) - 1)
        for role in (*OPERAND_ROLES, *RESULT_ROLES):
            products = [product for product, roles in PRODUCT_ROLES.items() if role in roles]
            choices = [policy.resolve(layer, role, product) for product in products]
            same = all(choice.spec == choices[0].spec for choice in choices)
            shown = list(zip(products, choices, strict=True))[: 1 if same else None]
            for product, choice in shown:
                row = _row(Operand(layer, role, choice.spec, choice.reason))
                rows.append(
                    row if same else replace(row, operand=f"{role.value} of {product.value}")
                )
    return rows


def inspect_model(
    model: nn.Module, policy: Policy, example_input: Tensor | None = None
) -> list[str]:
    """Check a model against a policy before any work.

    Args:
        example_input: needed only where ``forward`` writes sizes as numbers; see `apply`.

    Returns:
        What calibrates and trains but cannot be frozen into hardware, one line each.

    Raises:
        ModelError: it cannot be traced or converted: every reason, with the user's line.
        RecipeError: the policy does not fit the model.
    """
    plan = make_plan(model, policy, example_input)
    found = []
    for node, operand in (*plan.weights.items(), *plan.activations.items()):
        reason: str | None = f"its {operand.role.value} is kept float; give it a format"
        if operand.spec is not None:
            reason = simulated_only(operand.spec.format, operand.role)
        if reason is not None:
            found.append(f"{plan.matches[node].place}: {reason}")
    return found


@dataclass(frozen=True)
class Finding:
    """One operation of a model, and what is made of it.

    Attributes:
        layer: the user's path of the layer (the node's name for a function).
        type: the layer's type name, or the function's.
        kind: the converter's view of it (`Kind`), or "" if it has none.
        line: the user's source line, ``file:line: text``, or "".
        becomes: what it is in hardware; "" where that is not known.
        quantized: the format that its result is quantized to, if it is.
        problem, advice: what stands in its way, and what to do; "" if nothing does.
    """

    layer: str
    type: str
    kind: str
    line: str
    becomes: str = ""
    quantized: str = ""
    problem: str = ""
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Examination:
    """Every operation of a model under a policy, and whether it can become hardware.

    Attributes:
        findings: one an operation, in execution order.
        general: problems of the model as a whole, or of the policy.
    """

    findings: list[Finding]
    general: list[str] = field(default_factory=list)

    @property
    def convertible(self) -> bool:
        return not self.general and not any(finding.problem for finding in self.findings)


def examine(model: nn.Module, policy: Policy, example_input: Tensor | None = None) -> Examination:
    """As `inspect_model`, but every operation is listed, with or without a problem.

    Raises:
        ModelError: the model cannot be traced, or the example does not pass.
    """
    plan = traced_plan(model, example_input)
    problems = match_problems(plan)
    general: list[str] = []
    if not problems:
        try:
            problems = decide(plan, policy)
            if not problems:
                check(plan, policy)
        except (RecipeError, ModelError) as error:
            general.append(str(error))
    by_match: dict[fx.Node, Problem] = {}
    for problem in problems:
        if problem.match is None:
            general.append(str(problem))
        else:
            by_match.setdefault(problem.match.node, problem)
    shown = (match for match in plan.matches.values() if match.kind is not Kind.SIZE)
    findings = [_finding(plan, policy, match, by_match.get(match.node)) for match in shown]
    return Examination(findings, general)


def _finding(plan: Plan, policy: Policy, match: OpMatch, problem: Problem | None) -> Finding:
    operand = plan.activations.get(match.node)
    quantized = "" if operand is None else _format(operand)
    return Finding(
        match.path,
        match.type,
        "" if match.kind is None else match.kind.value,
        user_line(match.node) or "",
        "" if match.kind is None or problem is not None else _becomes(plan, policy, match),
        quantized,
        "" if problem is None else problem.what,
        "" if problem is None else problem.advice,
    )


_BECOMES = {
    Kind.INPUT: "quantized input",
    Kind.OUTPUT: "scores",
    Kind.BATCH_NORM: "folded into the quantizer behind it",
    Kind.SCALE: "folded into the quantizer behind it",
    Kind.CONSTANT: "folded into the quantizer behind it",
    Kind.MAX_POOL: "max pool",
    Kind.FLATTEN: "flatten",
    Kind.DROPOUT: "nothing",
    Kind.IDENTITY: "nothing",
    Kind.UPSAMPLE: "repeated pixels",
    Kind.REARRANGE: "space to depth; reordered channels cost nothing",
    Kind.PAD: "border of the layer behind it",
    Kind.ADD: "exact addition",
    Kind.CAT: "concatenation",
    Kind.AVG_POOL: "exact sum over windows",
    Kind.OWN: "integers by the rule it was registered with",
    Kind.COPY: "second quantizer of the input",
}


def _becomes(plan: Plan, policy: Policy, match: OpMatch) -> str:
    weight, operand = plan.weights.get(match.node), plan.activations.get(match.node)
    if match.kind in (Kind.CONV, Kind.LINEAR):
        text = "" if weight is None else f", {_format(weight)} weights"
        name = "dense layer" if match.kind is Kind.LINEAR else "convolution"
        grouped = ", one channel at a time" if plan.is_depthwise(match.node) else ""
        return f"integer {name}{text}{grouped}"
    if match.kind is Kind.ACTIVATION:
        if operand is None:  # nothing decided yet
            return "activation"
        if operand.spec is None:
            return "float"
        if is_table(plan, policy, match.node):
            return "table"
        if operand.spec.format.is_float:
            return "multiply, shift and round to a float"
        few = operand.spec.format.bits <= policy.threshold_bits
        return "thresholds" if few else "multiply, shift and round"
    return _BECOMES.get(match.kind, "") if match.kind is not None else ""


def _format(operand: Operand) -> str:
    return "float" if operand.spec is None else operand.spec.format.name


def _row(operand: Operand) -> Row:
    spec = operand.spec
    exact = operand.role.value == "accumulator"
    return Row(
        operand.layer.path,
        operand.layer.type,
        operand.role.value,
        "exact" if exact else _format(operand),
        "" if spec is None else spec.granularity.value,
        "" if spec is None else spec.scale_text,
        operand.reason,
    )


def _bias_row(weight: Operand, bias: Operand | None, stays: bool) -> Row:
    if weight.spec is not None and bias is not None and bias.spec is not None:
        return _row(bias)
    if weight.spec is None:
        fate, reason = "float", "the weight is float"
    elif stays:
        fate, reason = "integer", "rounded to the accumulator's scale, exact width"
    else:
        fate, reason = "folded", "taken up by the activation behind, in float64"
    return Row(weight.layer.path, weight.layer.type, "bias", fate, "", "accumulator", reason)
