# SPDX-License-Identifier: Apache-2.0
"""`apply`: the user's own module -> a model that calibrates, trains, or is integers alone."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.models.modes import evaluating
from bitwright.quantize.activation_quantizer import ActivationQuantizer, ScaleGroup
from bitwright.quantize.decisions import Operand, Plan
from bitwright.quantize.integers import IntegerModel, integerize
from bitwright.quantize.joins import Concatenate, QuantAdd
from bitwright.quantize.layers import CodebookGroup, QuantConv2d, QuantLayer, QuantLinear
from bitwright.quantize.model import POLICY, SHAPE, QuantizedModel
from bitwright.quantize.op_match import PASSING, Kind
from bitwright.quantize.plan import make_plan
from bitwright.quantize.policy import Policy
from bitwright.quantize.quantizer import Phase, set_phase
from bitwright.quantize.signals import raised
from bitwright.quantize.spec import QuantSpec, Scope

#: Operands that stay float, by the name of the node that gives them.
FLOATS = "bitwright_floats"
#: Each holds a histogram of 128 kB, twice where a model is copied; DenseNet-264 has some 800.
_MOST_QUANTIZERS = 5000
Quantizers = dict[fx.Node, ActivationQuantizer]


def apply(
    model: nn.Module,
    policy: Policy,
    phase: Phase | str,
    example_input: Tensor | None = None,
    *,
    sample_shape: tuple[int, ...] | None = None,
) -> QuantizedModel | IntegerModel:
    """Bring a model into a phase. The model given is left as it is.

    ``calibrate``: activations are observed and pass through in float. ``train``: weights and
    activations are quantized with straight-through gradients; scales that no calibration has set
    are set by the first batch; in evaluation mode the model is the integer network. ``freeze``: the
    integer network alone. ``prepare`` and ``convert`` are accepted for ``train`` and ``freeze``.

    Args:
        model: a plain module, or what an earlier call for the same policy returned (its weights
            and scales are kept).
        policy: what becomes of each operand.
        phase: see above.
        example_input: a batch; run through the model once to check shapes and, where nothing has
            been calibrated, to set the scales (behind batch statistics if the model is in
            training mode, else behind the running ones). Its shape is remembered: the integer
            network is made for it (one forward pass tells it, too).
        sample_shape: shape of one input sample, (C, H, W) or (C,), where no example is given.

    Returns:
        A new `QuantizedModel` with the layer paths of the user's model. Make the optimizer after
        this call: its parameters are new. For ``freeze`` an `IntegerModel`.

    Raises:
        ModelError: the model cannot be traced, converted, or (``freeze``) expressed in integers.
        RecipeError: the policy does not fit the model.
    """
    wanted = parse_phase(phase)
    if is_converted(model):
        converted = _copy_of(model, policy)
    else:
        like = example_input
        if like is None and sample_shape is not None:
            like = torch.zeros((1, *sample_shape))
        converted = _convert(model, policy, like)
    set_phase(converted, Phase.CALIBRATE if wanted is Phase.CALIBRATE else Phase.TRAIN)
    if sample_shape is not None:
        converted.meta[SHAPE] = tuple(sample_shape)
    if example_input is not None:
        converted.meta[SHAPE] = tuple(example_input.shape[1:])
        batch_statistics = model.training and wanted is not Phase.FREEZE
        _run_example(converted, example_input, batch_statistics)
    if wanted is not Phase.FREEZE:
        return converted
    return integerize(converted.eval(), policy, converted.sample_shape)


def parse_phase(phase: Phase | str) -> Phase:
    """A phase from its name or torchao's and NNCF's words for it."""
    aliases = {"prepare": Phase.TRAIN, "convert": Phase.FREEZE}
    word = str(phase)
    if word in aliases:
        return aliases[word]
    try:
        return Phase(word)
    except ValueError:
        names = ", ".join(member.value for member in Phase)
        raise ModelError(f"unknown phase {phase!r}", hint=f"one of {names}") from None


def is_converted(model: nn.Module) -> bool:
    """Whether a model came from `apply` in phase calibrate or train."""
    return isinstance(model, QuantizedModel)


def _copy_of(model: QuantizedModel, policy: Policy) -> QuantizedModel:
    if model.policy.rules != policy.rules:
        raise RecipeError(
            "the model was converted with another policy",
            hint="apply the new policy to the float model, and load the trained state dict into it",
        )
    return copy.deepcopy(model)


def _convert(model: nn.Module, policy: Policy, example: Tensor | None) -> QuantizedModel:
    if isinstance(model, IntegerModel):
        raise ModelError("the model is frozen already; apply works on float or training models")
    copied = raised(copy.deepcopy(model), example)
    # The plan is made on the copy, so that its nodes name the modules that are replaced.
    plan = make_plan(copied, policy, example)
    quantizers = _insert_quantizers(copied, plan)
    for group in plan.groups:
        ScaleGroup([quantizers[node] for node in group])
    _replace_layers(copied, plan, quantizers)
    _share_codebooks(copied, plan, codebook_groups(copied))
    _replace_functions(copied, plan, quantizers)
    result = QuantizedModel(copied, plan.graph, class_name=f"Quantized{type(model).__name__}")
    result.graph.eliminate_dead_code()
    result.graph.lint()
    result.recompile()
    result.meta[POLICY] = policy
    result.meta[FLOATS] = {
        node.name: operand for node, operand in plan.activations.items() if operand.spec is None
    }
    result.train(model.training)
    return result


def _insert_quantizers(root: nn.Module, plan: Plan) -> Quantizers:
    """One quantizer for each decision; returns them by the node whose output they quantize."""
    made: Quantizers = {}
    taken: set[str] = set()
    count = sum(operand.spec is not None for operand in plan.activations.values())
    if count > _MOST_QUANTIZERS:
        raise ModelError(
            f"{count} activations to quantize; at most {_MOST_QUANTIZERS} are",
            where=type(root).__name__,
            hint="use a network of fewer layers, or one activation where many follow one another",
        )
    for node, operand in plan.activations.items():
        if operand.spec is None:
            continue
        quantizer = made[node] = _quantizer(plan, node, operand)
        match = plan.matches[node]
        if match.kind is not Kind.ACTIVATION or match.function is not None:
            _add_after(root, plan, node, quantizer)
            continue
        target = _own_path(root, plan, node, taken)
        taken.add(target)
        _set(root, target, quantizer)
        quantizer.reuse_input = _is_fresh(plan, match.operands[0])
        node.op, node.target = "call_module", target
        node.args, node.kwargs = _now(node, 1), {}
    return made


#: Kinds whose result is a new tensor, kept by nobody.
_FRESH = (Kind.BATCH_NORM, Kind.CONV, Kind.LINEAR, Kind.ADD, Kind.CAT)


def _is_fresh(plan: Plan, node: fx.Node) -> bool:
    """Whether the activation behind this node may write over its result."""
    return node in plan.matches and plan.matches[node].kind in _FRESH and len(node.users) == 1


def _quantizer(plan: Plan, node: fx.Node, operand: Operand) -> ActivationQuantizer:
    clip = plan.clips[node]
    bounds = (-math.inf, math.inf) if clip is None or clip.sign else (clip.low, clip.high)
    if operand.spec is None:
        raise ModelError("internal: a float operand has no quantizer", where=operand.layer.path)
    return ActivationQuantizer(operand.spec, operand.role, bounds)


def _own_path(root: nn.Module, plan: Plan, node: fx.Node, taken: set[str]) -> str:
    """The user's path of an activation layer; a fresh one for functions and for second uses."""
    if node.op == "call_module" and str(node.target) not in taken:
        return str(node.target)
    return _fresh(root, f"{plan.matches[node].path}_quantizer")


def _fresh(root: nn.Module, wish: str) -> str:
    """An unused path: the wish, or with a number behind it."""
    number, name = 1, wish
    while _has(root, name):
        number, name = number + 1, f"{wish}_{number}"
    return name


def _has(root: nn.Module, path: str) -> bool:
    """Whether a module, or anything else, stands there."""
    owner: object = root
    *folders, last = path.split(".")
    for folder in folders:
        owner = getattr(owner, folder, None)
    return hasattr(owner, last)


def _set(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    owner = root.get_submodule(parent)
    owner._modules.pop(name, None)
    owner.add_module(name, module)


def _add_after(root: nn.Module, plan: Plan, node: fx.Node, quantizer: ActivationQuantizer) -> None:
    """Quantize what a node gives to layers and joins; other activations keep the float value."""
    match = plan.matches[node]
    path = _fresh(root, f"{match.path.replace('.', '_')}_quantizer")
    root.add_module(path, quantizer)
    with plan.graph.inserting_after(node):
        inserted = plan.graph.call_module(path, (node,))
    inserted.meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    whole = match.kind is Kind.INPUT or match.function is not None
    for user in list(node.users):
        if user is not inserted and (whole or _needs_levels(plan, user)):
            user.replace_input_with(node, inserted)


def _needs_levels(plan: Plan, node: fx.Node) -> bool:
    """Whether a node, or one behind it, takes a quantized operand."""
    if node in plan.readers:
        return True
    match = plan.matches.get(node)
    passes = match is not None and match.kind in PASSING
    return passes and plan.is_read_by(node, plan.readers.__contains__)


def _share_codebooks(root: nn.Module, plan: Plan, groups: dict[str, str]) -> None:
    """Unite the layers whose policy has one table for a group or the network."""
    found: dict[tuple[QuantSpec, str], list[QuantLayer]] = {}
    for node, operand in plan.weights.items():
        spec = operand.spec
        if spec is None or spec.scope is Scope.LAYER:
            continue
        layer = root.get_submodule(str(node.target))
        kind = "" if spec.scope is Scope.NETWORK else groups.get(operand.layer.path, "")
        found.setdefault((spec, kind), []).append(layer)
    for layers in found.values():
        CodebookGroup(layers)


def codebook_groups(model: nn.Module) -> dict[str, str]:
    """The group of each layer, for codebooks that a group shares: plain layers, those that took
    up a batch norm, and former norms.
    """
    from bitwright.quantize.ptq.folding import Group, fold_groups

    plain = (Group.CONV, Group.LINEAR)
    return {path: "" if g in plain else g.value for path, g in fold_groups(model).items()}


def _replace_layers(root: nn.Module, plan: Plan, quantizers: Quantizers) -> None:
    for node, operand in plan.weights.items():
        if operand.spec is None:
            continue
        layer = root.get_submodule(str(node.target))
        wrapper = QuantConv2d if isinstance(layer, nn.Conv2d) else QuantLinear
        bias = plan.biases.get(node)
        quantized = wrapper(layer, operand.spec, None if bias is None else bias.spec)
        quantized.train(layer.training)
        _set(root, str(node.target), quantized)
        feeding = _feeding_quantizer(plan, plan.matches[node].operands[0], quantizers)
        # A bias remains an integer of its own only if nothing behind the layer takes it up.
        if node is plan.source(plan.output) and feeding is not None:
            quantized.bind_input(feeding)


def _feeding_quantizer(
    plan: Plan, operand: fx.Node, quantizers: Quantizers
) -> ActivationQuantizer | None:
    """The quantizer on whose grid an operand is; None if a part of it is on no integer grid."""
    found = [quantizers.get(leaf) for leaf in plan.leaves(operand)]
    if any(quantizer is None or not quantizer.has_unit for quantizer in found):
        return None
    return found[0]


def _replace_functions(root: nn.Module, plan: Plan, quantizers: Quantizers) -> None:
    """Functions and methods become layers; what does nothing goes."""
    for node, match in plan.matches.items():
        if match.kind in (Kind.IDENTITY, Kind.COPY):
            node.replace_all_uses_with(node.args[0])
        elif match.kind is Kind.ADD:
            add = QuantAdd(match.sign)
            bound = [_feeding_quantizer(plan, operand, quantizers) for operand in match.operands]
            if None not in bound:
                add.bind_operands(*bound)
            _replace_call(root, node, add, _now(node, 2))
        elif match.kind is Kind.CAT:
            _replace_call(
                root,
                node,
                Concatenate(),
                tuple(node.args[0] if node.args else node.kwargs["tensors"]),
            )
        elif node.op == "call_module":
            if hasattr(root.get_submodule(str(node.target)), "inplace"):
                # A quantizer keeps its output for the backward pass.
                root.get_submodule(str(node.target)).inplace = False
        elif match.kind is Kind.SCALE and match.replacement is not None:
            _replace_call(root, node, match.replacement, _scale_inputs(plan, node))
        elif match.replacement is not None:
            _replace_call(root, node, match.replacement, _now(node, 1))


def _scale_inputs(plan: Plan, node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensor first, then the constant of the model, if there is one."""
    tensors = _now(node, 2)
    kinds = [plan.matches[t].kind if t in plan.matches else None for t in tensors]
    return tuple(sorted(tensors, key=lambda t: kinds[tensors.index(t)] is Kind.CONSTANT))


def _now(node: fx.Node, count: int) -> tuple[fx.Node, ...]:
    """The tensors that a call takes now that quantizers have been inserted."""
    tensors = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node)]
    return tuple(tensors[:count])


def _replace_call(
    root: nn.Module, node: fx.Node, layer: nn.Module, tensors: tuple[fx.Node, ...]
) -> None:
    path = _fresh(root, f"{node.name}_layer")
    root.add_module(path, layer)
    node.op, node.target = "call_module", path
    node.args, node.kwargs = tensors, {}


def _run_example(model: QuantizedModel, example_input: Tensor, batch_statistics: bool) -> None:
    """One pass that checks shapes; it sets the scales of quantizers that have none.

    A model about to train sees its activations behind batch statistics, so that is what the scales
    are set from (``batch_statistics``); the running statistics are not touched.
    """
    quantizers = [m for m in model.modules() if isinstance(m, ActivationQuantizer)]
    fresh = [q for q in quantizers if q.phase is Phase.TRAIN and not q.ready]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    kept = {norm: {k: v.clone() for k, v in norm.named_buffers()} for norm in norms}
    for quantizer in fresh:
        quantizer.enter(Phase.CALIBRATE)
    try:
        with evaluating(model):
            for norm in norms:
                norm.train(batch_statistics)
            model.simulate(example_input)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the example input of shape {tuple(example_input.shape)} does not pass: {error}",
            hint="check the input shape and, behind a flatten, the in_features of the next layer",
        ) from error
    finally:
        for norm, buffers in kept.items():
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)
    for quantizer in fresh:
        quantizer.enter(Phase.TRAIN)
