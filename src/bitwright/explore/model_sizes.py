# SPDX-License-Identifier: Apache-2.0
"""What each operand of a model is in numbers: values, products, bits. `model_size` sums up,
and the search for formats does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.explore.sizes import FLOAT_BITS, SizeReport, Stored
from bitwright.formats import Format
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.convert import FLOATS, codebook_groups
from bitwright.quantize.decisions import Operand, Plan
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.model import QuantizedModel
from bitwright.quantize.plan import make_plan
from bitwright.quantize.policy import Policy
from bitwright.quantize.shapes import example_shapes, model_shapes
from bitwright.quantize.spec import Granularity, QuantSpec, Role, ScaleRule, Scope

BIAS_BITS = 32
SCALE_BITS = 32
EXPONENT_BITS = 8
#: Numbers a channel of a batch norm: factor, offset, mean and variance. Folding leaves two.
NORM_NUMBERS = 4

_Shapes = dict[fx.Node, tuple[int, ...]]
_PRODUCTS = (QuantLayer, nn.Conv2d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Facts:
    """One quantizable operand of a model.

    Attributes:
        path, type: the layer's path and type name, by which rules select it.
        role: weight, activation or input.
        format: None for float.
        shape: of the weight (O, I, ...), or of one sample of the feature.
        scales: bits of its scales.
        table: which table it decodes with, by name; operands of one name share theirs.
        macs: products of one image (weights only).
        reads, makes: keys of the features that the layer reads, and that its result becomes
            (weights only).
        read_count, made_count: values that it reads and makes for one image (weights only).
        bias: values of its bias (weights only).
        bias_spec: how the bias is quantized; None: 32 bits a value.
        spec: how it is quantized; None for float.
    """

    path: str
    type: str
    role: Role
    format: Format | None
    shape: tuple[int, ...]
    scales: int = 0
    table: str = ""
    macs: int = 0
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    read_count: int = 0
    made_count: int = 0
    bias: int = 0
    bias_spec: QuantSpec | None = None
    spec: QuantSpec | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def key(self) -> str:
        """``path.role``: unique within a model."""
        return f"{self.path}.{self.role.value}"

    @property
    def bits(self) -> int:
        return FLOAT_BITS if self.format is None else self.format.bits

    @property
    def width(self) -> int:
        """Bits of what arithmetic meets: of a codebook the centroid, not the index."""
        centroid = getattr(self.format, "centroid", None)
        return self.bits if centroid is None else int(centroid.bits)

    @property
    def is_weight(self) -> bool:
        return self.role is Role.WEIGHT


def facts_of(model: nn.Module, policy: Policy, sample_shape: tuple[int, ...]) -> list[Facts]:
    """All quantizable operands of a float model under a policy, in execution order.

    Raises:
        ModelError: the model cannot be traced or converted, or such a sample does not pass.
        RecipeError: the policy does not fit the model.
    """
    example = torch.zeros((1, *sample_shape))
    plan = make_plan(model, policy, example)
    shapes = example_shapes(model, plan.graph, example)
    followers = {node for group in plan.groups for node in group[1:]}  # one scale a group
    shared = any(o.spec is not None and o.spec.scope is Scope.GROUP for o in plan.weights.values())
    groups = codebook_groups(model) if shared else {}
    found = []
    for node in plan.graph.nodes:
        if node in plan.weights:
            group = groups.get(plan.weights[node].layer.path, "")
            found.append(_planned_weight(plan, node, shapes, group))
        if node in plan.activations:
            operand = plan.activations[node]
            found.append(
                Facts(
                    operand.layer.path,
                    operand.layer.type,
                    operand.role,
                    None if operand.spec is None else operand.spec.format,
                    shapes[node][1:],
                    scales=0
                    if (spec := operand.spec) is None or node in followers
                    else scale_bits(spec),
                    spec=operand.spec,
                )
            )
    return found


def _planned_weight(plan: Plan, node: fx.Node, shapes: _Shapes, group: str) -> Facts:
    operand: Operand = plan.weights[node]
    path = operand.layer.path
    layer = plan.modules[plan.matches[node].path]
    shape = tuple(layer.get_parameter("weight").shape)
    source = plan.matches[node].operands[0]
    made = math.prod(shapes[node][1:])
    bias = getattr(layer, "bias", None)
    keys = {n: f"{o.layer.path}.{o.role.value}" for n, o in plan.activations.items()}
    spec = operand.spec
    bias_operand = plan.biases.get(node)
    table = ""  # layers of one name share theirs
    if spec is not None:
        table = path if spec.scope is Scope.LAYER else f"{spec.scope.value} {group}"
    return Facts(
        operand.layer.path,
        operand.layer.type,
        Role.WEIGHT,
        None if spec is None else spec.format,
        shape,
        scales=0 if spec is None else _weight_scales(spec, shape[0]),
        table=table,
        macs=made * math.prod(shape[1:]),
        reads=tuple(dict.fromkeys(keys[n] for n in plan.leaves(source) if n in keys)),
        makes=_features(node, keys, "users"),
        read_count=math.prod(shapes[source][1:]),
        made_count=made,
        bias=0 if bias is None else bias.numel(),
        bias_spec=None if bias_operand is None else bias_operand.spec,
        spec=spec,
    )


def _features(node: fx.Node, keys: dict[fx.Node, str], way: str) -> tuple[str, ...]:
    """Keys of the first quantized features on every way from a node.

    Args:
        way: ``users``: on, from the node itself; ``all_input_nodes``: back, from those it reads.
    """
    if node in keys and way == "users":
        return (keys[node],)
    found: dict[str, None] = {}
    waiting, seen = [*reversed([*getattr(node, way)])], {node}
    while waiting:
        other = waiting.pop()
        if other in keys:
            found[keys[other]] = None
        elif other not in seen:  # which many ways may lead to
            seen.add(other)
            waiting += reversed([*getattr(other, way)])
    return tuple(found)


def _weight_scales(spec: QuantSpec, channels: int) -> int:
    per_channel = spec.granularity is Granularity.PER_CHANNEL
    return scale_bits(spec) * (channels if per_channel else 1)


def scale_bits(spec: QuantSpec) -> int:
    """Bits of one scale and its zero point: none where the format fixes it, an exponent where it is
    a power of two.
    """
    if spec.format.block:
        return 0  # counted as exponents
    if spec.scale is ScaleRule.CONST and spec.value == 1:
        return 0
    zero_point = spec.format.bits if spec.zero_point else 0
    return zero_point + (EXPONENT_BITS if spec.power_of_two else SCALE_BITS)


def bit_operations(facts: list[Facts]) -> int:
    """BOPs of one image: products times bits of the weight times bits of what it meets.

    The measure of UNIQ (Baskin et al. 2018) without the accumulator's additions, as in HAWQ-V3 (Yao
    et al. 2021). A layer that reads a concatenation counts the widest part.
    """
    widths = {fact.key: fact.width for fact in facts}
    return sum(fact.macs * fact.width * _widest(fact.reads, widths) for fact in facts)


def _widest(keys: tuple[str, ...], widths: dict[str, int]) -> int:
    """Bits of the widest of some features; one of which nothing is known is float."""
    return max((widths.get(key, FLOAT_BITS) for key in keys), default=FLOAT_BITS)


def stored(fact: Facts) -> Stored:
    """The bits of an operand, with all that its format needs besides codes."""
    role, number_format = fact.role.value, fact.format
    if number_format is None:
        return Stored(fact.path, role, "float32", fact.count, FLOAT_BITS)
    exponents = 0
    if number_format.block:
        channels = fact.shape[1 if fact.is_weight and len(fact.shape) > 1 else 0]
        runs = fact.count // max(channels, 1)
        exponents = EXPONENT_BITS * runs * math.ceil(channels / number_format.block)
    return Stored(
        fact.path,
        role,
        number_format.name,
        fact.count,
        number_format.bits,
        table=int(getattr(number_format, "table_bits", 0)),
        scales=fact.scales,
        exponents=exponents,
    )


def model_size(
    model: nn.Module, policy: Policy | None = None, *, sample_shape: tuple[int, ...] | None = None
) -> SizeReport:
    """The size of a model.

    Args:
        model: a float model with a policy, or what `apply` made of it for a policy .
        policy: what becomes of each operand; None: as it was converted, or all float.
        sample_shape: (C, H, W) of one image; without it, that of the example given to `apply`, or
            else features are not counted.

    Raises:
        ModelError: the model cannot be traced, or its shape does not pass.
        RecipeError: the policy does not fit the model.
    """
    if isinstance(model, QuantizedModel):
        return size_of(_graph_facts(model, sample_shape or model.sample_shape), model)
    if sample_shape is None:
        raise ModelError(
            "the size of an image is not known",
            where=type(model).__name__,
            hint="give sample_shape=(channels, height, width)",
        )
    wanted = policy if policy is not None else Policy.uniform(None, None, None)
    return size_of(facts_of(model, wanted, sample_shape), model)


def size_of(facts: list[Facts], model: nn.Module) -> SizeReport:
    """The size of a model whose operands become what ``facts`` says."""
    widths = {fact.key: fact.bits for fact in facts}
    entries: list[Stored] = []
    read, made = [0, 0], [0, 0]
    tables: set[str] = set()
    for fact in facts:
        entry = stored(fact)
        if entry.table and fact.table and fact.table in tables:
            entry = Stored(**{**vars(entry), "table": 0})
        tables.add(fact.table)
        entries.append(entry)
        if not fact.is_weight:
            continue
        if fact.bias:
            entries.append(_stored_bias(fact))
        read[0] += fact.read_count
        read[1] += fact.read_count * _widest(fact.reads, widths)
        made[0] += fact.made_count
        made[1] += fact.made_count * _widest(fact.makes, widths)
    entries += _affine(model)
    return SizeReport(tuple(entries), _float_parameters(model), tuple(read), tuple(made))  # type: ignore[arg-type]


def _stored_bias(fact: Facts) -> Stored:
    spec = fact.bias_spec
    if spec is None:
        name = "float32" if fact.format is None else "int32"
        return Stored(fact.path, "bias", name, fact.bias, BIAS_BITS)
    scales = _weight_scales(spec, fact.bias)
    return Stored(fact.path, "bias", spec.format.name, fact.bias, spec.format.bits, scales=scales)


def _affine(model: nn.Module) -> Iterator[Stored]:
    """Batch norms, 32 bits a number."""
    for name, module in model.named_modules():
        if isinstance(module, _NORMS):
            numbers = NORM_NUMBERS * module.num_features
            yield Stored(name, "batch_norm", "float32", numbers, FLOAT_BITS)


def _float_parameters(model: nn.Module) -> int:
    """Numbers that the network has learned: layers, and batch norms with their statistics."""
    count = 0
    for module in model.modules():
        if isinstance(module, _PRODUCTS):
            bias = getattr(module, "bias", None)
            count += module.weight.numel() + (0 if bias is None else bias.numel())
        elif isinstance(module, _NORMS):
            count += NORM_NUMBERS * module.num_features
    return count


def _graph_facts(model: fx.GraphModule, shape: tuple[int, ...] | None) -> list[Facts]:
    """Operands of a converted model; without a shape, weights alone."""
    shapes = {} if shape is None else model_shapes(model, shape)
    modules = dict(model.named_modules())
    called = {n: modules[str(n.target)] for n in model.graph.nodes if n.op == "call_module"}
    floats: dict[str, Operand] = model.meta.get(FLOATS, {})
    facts = {
        n: Facts(o.layer.path, o.layer.type, o.role, None, shapes.get(n, ()))
        for n in model.graph.nodes
        if (o := floats.get(n.name)) is not None
    }
    facts |= {
        n: _graph_feature(n, m, shapes.get(n, ()))
        for n, m in called.items()
        if isinstance(m, ActivationQuantizer)
    }
    keys = {node: fact.key for node, fact in facts.items()}
    found = []
    for node in model.graph.nodes:
        if isinstance(called.get(node), _PRODUCTS):
            found.append(_graph_weight(node, called[node], keys, shapes))
        elif node in facts and node in shapes:
            found.append(facts[node])
    return found


def _graph_feature(node: fx.Node, quantizer: ActivationQuantizer, shape: tuple[int, ...]) -> Facts:
    return Facts(
        str(node.target),
        type(quantizer).__name__,
        quantizer.role,
        quantizer.spec.format,
        shape,
        scale_bits(quantizer.spec) if quantizer.owner is quantizer else 0,
        spec=quantizer.spec,
    )


def _graph_weight(
    node: fx.Node, module: nn.Module, keys: dict[fx.Node, str], shapes: _Shapes
) -> Facts:
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    scales, number_format, table, spec = 0, None, "", None
    bias_quantizer = getattr(module, "bias_quantizer", None)
    if isinstance(module, QuantLayer):
        spec = module.weight_quantizer.spec
        number_format, scales = spec.format, _weight_scales(spec, weight.shape[0])
        table = str(node.target)
        if spec.scope is not Scope.LAYER:
            table = f"shared {id(module.weight_quantizer.__dict__.get('codebooks'))}"
    made = math.prod(shapes.get(node, (0,)))
    (source,) = node.all_input_nodes
    bias = getattr(module, "bias", None)
    return Facts(
        str(node.target),
        type(module).__name__,
        Role.WEIGHT,
        number_format,
        tuple(weight.shape),
        scales=scales,
        table=table,
        macs=made * math.prod(weight.shape[1:]),
        reads=_features(node, keys, "all_input_nodes") if shapes else (),
        makes=_features(node, keys, "users") if shapes else (),
        read_count=math.prod(shapes.get(source, (0,))),
        made_count=made,
        bias=0 if bias is None else bias.numel(),
        bias_spec=None if bias_quantizer is None else bias_quantizer.spec,
        spec=spec,
    )
