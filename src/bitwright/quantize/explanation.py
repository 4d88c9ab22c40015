# SPDX-License-Identifier: Apache-2.0
"""What a policy makes of a model, in rows, before anything is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from torch import Tensor, nn

from bitwright.quantize.decisions import Operand
from bitwright.quantize.plan import make_plan
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_defaults import simulated_only
from bitwright.quantize.spec import OPERAND_ROLES, PRODUCT_ROLES, RESULT_ROLES, Layer


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
