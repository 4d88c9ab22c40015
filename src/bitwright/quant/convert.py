# SPDX-License-Identifier: Apache-2.0
"""`apply`: the user's own module -> a model that calibrates, trains, or is frozen to integers."""

from __future__ import annotations

import copy
import math
import operator

import torch
from torch import Tensor, fx, nn

from bitwright.errors import ModelError, RecipeError
from bitwright.quant.layers import QuantConv2d, QuantLinear
from bitwright.quant.plan import Operand, Plan, make_plan
from bitwright.quant.policy import Policy
from bitwright.quant.quantizers import ActivationQuantizer, Phase, set_phase
from bitwright.quant.sites import PASSING, Kind, argument

_META = "bitwright"
_FUSED = (Kind.CONV, Kind.LINEAR)


def apply(
    model: nn.Module,
    policy: Policy,
    phase: Phase | str,
    example_input: Tensor | None = None,
) -> fx.GraphModule:
    """Bring a model into a phase. The model given is left as it is.

    ``calibrate``: activations are observed and pass through in float. ``train``: weights and
    activations are quantized with straight-through gradients; scales that no calibration has set
    are set by the first batch. ``freeze``: exact integer arithmetic (`bitwright.quant.frozen`), in
    evaluation mode. ``prepare`` and ``convert`` are accepted for ``train`` and ``freeze``.

    Args:
        model: a plain module, or what an earlier call for the same policy returned (its weights
            and scales are kept).
        policy: what becomes of each operand.
        phase: see above.
        example_input: a batch; run through the model once to check shapes and, where nothing has
            been calibrated, to set the scales (behind batch statistics if the model is in
            training mode, else behind the running ones).

    Returns:
        A new `torch.fx.GraphModule` with the layer paths of the user's model. Make the optimizer
        after this call: its parameters are new.

    Raises:
        ModelError: the model cannot be traced, converted, or (``freeze``) expressed in integers.
        RecipeError: the policy does not fit the model.
    """
    wanted = parse_phase(phase)
    converted = _copy_of(model, policy) if is_converted(model) else _convert(model, policy)
    if example_input is not None:
        batch_statistics = model.training and wanted is not Phase.FREEZE
        _run_example(converted, example_input, batch_statistics)
    if wanted is not Phase.FREEZE:
        set_phase(converted, wanted)
        return converted
    from bitwright.quant.freeze import freeze

    set_phase(converted, Phase.TRAIN)
    return freeze(converted.eval(), policy)


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
    return isinstance(model, fx.GraphModule) and _META in model.meta


def _copy_of(model: fx.GraphModule, policy: Policy) -> fx.GraphModule:
    if model.meta[_META].rules != policy.rules:
        raise RecipeError(
            "the model was converted with another policy",
            hint="apply the new policy to the float model, and load the trained state dict into it",
        )
    return copy.deepcopy(model)


def _convert(model: nn.Module, policy: Policy) -> fx.GraphModule:
    if isinstance(model, fx.GraphModule) and "bitwright_frozen" in model.meta:
        raise ModelError("the model is frozen already; apply works on float or training models")
    copied = copy.deepcopy(model)
    # The plan is made on the copy, so that its nodes name the modules that are replaced.
    plan = make_plan(copied, policy)
    quantizers = _insert_quantizers(copied, plan)
    _replace_layers(copied, plan, quantizers)
    _replace_functions(copied, plan)
    result = fx.GraphModule(copied, plan.graph, class_name=f"Quantized{type(model).__name__}")
    result.graph.eliminate_dead_code()
    result.graph.lint()
    result.recompile()
    result.meta[_META] = policy
    result.train(model.training)
    return result


def _insert_quantizers(root: nn.Module, plan: Plan) -> dict[fx.Node, ActivationQuantizer]:
    """One quantizer for each decision; returns them by the node that then carries their output."""
    placed: dict[fx.Node, ActivationQuantizer] = {}
    for node, operand in plan.activations.items():
        if operand.spec is None:
            continue
        quantizer = _quantizer(plan, node, operand)
        if plan.sites[node].kind is Kind.ACTIVATION:
            taken = {str(other.target) for other in placed if other.op == "call_module"}
            target = _own_path(root, plan, node, taken)
            _set(root, target, quantizer)
            quantizer.reuse_input = _is_fresh(plan, node.args[0])
            node.op, node.target = "call_module", target
            node.args, node.kwargs = (node.args[0],), {}
            placed[node] = quantizer
        else:
            placed[_add_after(root, plan, node, quantizer)] = quantizer
    return placed


#: Kinds whose result is a new tensor, kept by nobody.
_FRESH = (Kind.BATCH_NORM, Kind.CONV, Kind.LINEAR, Kind.ADD, Kind.CAT)


def _is_fresh(plan: Plan, node: fx.Node) -> bool:
    """Whether the activation behind this node may write over its result."""
    return node in plan.sites and plan.sites[node].kind in _FRESH and len(node.users) == 1


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
    return _fresh(root, f"{plan.sites[node].path}_quantizer")


def _fresh(root: nn.Module, wish: str) -> str:
    """An unused path: the wish, or with a number behind it."""
    known = {name for name, _ in root.named_modules()} | set(vars(root))
    number, name = 1, wish
    while name in known or hasattr(root, name):
        number, name = number + 1, f"{wish}_{number}"
    return name


def _set(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    owner = root.get_submodule(parent)
    owner._modules.pop(name, None)
    owner.add_module(name, module)


def _add_after(
    root: nn.Module, plan: Plan, node: fx.Node, quantizer: ActivationQuantizer
) -> fx.Node:
    """Quantize what a node gives to layers; activations and additions keep the float value."""
    flat = plan.sites[node].path.replace(".", "_")
    path = _fresh(root, f"{flat}_quantizer")
    root.add_module(path, quantizer)
    with plan.graph.inserting_after(node):
        inserted = plan.graph.call_module(path, (node,))
    inserted.meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    whole = plan.sites[node].kind is Kind.INPUT
    for user in list(node.users):
        if user is not inserted and (whole or _leads_to_layer(plan, user)):
            user.replace_input_with(node, inserted)
    return inserted


def _leads_to_layer(plan: Plan, node: fx.Node) -> bool:
    site = plan.sites.get(node)
    if site is None:
        return False
    if site.kind in PASSING:
        return any(_leads_to_layer(plan, user) for user in node.users)
    return site.kind in _FUSED


def _replace_layers(
    root: nn.Module, plan: Plan, quantizers: dict[fx.Node, ActivationQuantizer]
) -> None:
    for node, operand in plan.weights.items():
        if operand.spec is None:
            continue
        layer = root.get_submodule(str(node.target))
        wrapper = QuantConv2d if isinstance(layer, nn.Conv2d) else QuantLinear
        quantized = wrapper(layer, operand.spec)
        quantized.train(layer.training)
        _set(root, str(node.target), quantized)
        feeding = _feeding_quantizer(plan, node, quantizers)
        if _bias_stays(plan, node) and feeding is not None:
            quantized.bind_input(feeding)


def _feeding_quantizer(
    plan: Plan, node: fx.Node, quantizers: dict[fx.Node, ActivationQuantizer]
) -> ActivationQuantizer | None:
    source = node.args[0]
    while isinstance(source, fx.Node) and source not in quantizers:
        if source not in plan.sites or plan.sites[source].kind not in PASSING:
            return None
        source = source.args[0]
    return quantizers.get(source) if isinstance(source, fx.Node) else None


def _bias_stays(plan: Plan, node: fx.Node) -> bool:
    """Whether the bias remains an integer of its own: nothing behind the layer takes it up."""
    return node is plan.source(plan.graph.output_node().args[0])


def _replace_functions(root: nn.Module, plan: Plan) -> None:
    """Functions and methods that flatten or pool become layers; shape arithmetic goes with them.

    Contiguous and nn.Identity nodes, which do nothing, go too.
    """
    for node, site in plan.sites.items():
        if site.kind is Kind.IDENTITY:
            node.replace_all_uses_with(node.args[0])
        elif site.kind is Kind.ADD:
            # Never in place: a quantizer keeps its output for the backward pass.
            node.op, node.target = "call_function", operator.add
            node.args, node.kwargs = node.args[:2], {}
        elif site.kind is Kind.DROPOUT and node.op == "call_module":
            root.get_submodule(str(node.target)).inplace = False
        elif node.op == "call_module":
            continue
        elif site.kind is Kind.FLATTEN:
            _replace_call(root, node, nn.Flatten())
        elif site.kind is Kind.MAX_POOL:
            kernel = argument(node, 1, "kernel_size", None)
            stride = argument(node, 2, "stride", None)
            pool = nn.MaxPool2d(kernel, stride or kernel, argument(node, 3, "padding", 0))
            _replace_call(root, node, pool)


def _replace_call(root: nn.Module, node: fx.Node, layer: nn.Module) -> None:
    path = _fresh(root, f"{node.name}_layer")
    root.add_module(path, layer)
    node.op, node.target = "call_module", path
    node.args, node.kwargs = (node.args[0],), {}


def _run_example(model: fx.GraphModule, example_input: Tensor, batch_statistics: bool) -> None:
    """One pass that checks shapes; it sets the scales of quantizers that have none.

    A model about to train sees its activations behind batch statistics, so that is what the scales
    are set from (``batch_statistics``); the running statistics are not touched.
    """
    was_training = {module: module.training for module in model.modules()}
    quantizers = [m for m in model.modules() if isinstance(m, ActivationQuantizer)]
    phases = {quantizer: quantizer.phase for quantizer in quantizers}
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    kept = {norm: {k: v.clone() for k, v in norm.named_buffers()} for norm in norms}
    model.eval()
    for quantizer in quantizers:
        quantizer.phase = Phase.TRAIN if quantizer.ready else Phase.CALIBRATE
    for norm in norms:
        norm.train(batch_statistics)
    try:
        with torch.no_grad():
            model(example_input)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the example input of shape {tuple(example_input.shape)} does not pass: {error}",
            hint="check the input shape and, behind a flatten, the in_features of the next layer",
        ) from error
    finally:
        for quantizer, phase in phases.items():
            quantizer.phase = phase
        for norm, buffers in kept.items():
            for name, value in buffers.items():
                norm.get_buffer(name).copy_(value)
        for module, mode in was_training.items():
            module.training = mode
