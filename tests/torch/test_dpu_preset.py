# SPDX-License-Identifier: Apache-2.0
"""The quantizer of the DPU: power-of-two int8 throughout, trained in, one part on the engine."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.engine import ENGINES
from bitwright.engine.compiler import compile_graph as compile_for_engine
from bitwright.ir import Graph, IntArray
from bitwright.ir.executor import Executor
from bitwright.models import build_model
from bitwright.papers.dpu.architecture import load_architecture
from bitwright.papers.dpu.calibration import known_networks
from bitwright.papers.dpu.compiler import CPU, ENGINE, compile_graph
from bitwright.papers.dpu.cycles import works_of
from bitwright.papers.dpu.search import full_architecture
from bitwright.pipeline.recipe import load_recipe, recipe_from_dict
from bitwright.quantize import IntegerModel, Policy, apply, integerize
from bitwright.quantize.policy import Policy as PolicyClass
from bitwright.quantize.ptq.post_training import post_training_quantize, prepare_network

_SMALL = {"blocks": [1, 2], "growth": 4, "stem_width": 8, "transition_activation": False}
_SHAPE = (16, 16, 3)


def densenet(form: str) -> nn.Module:
    """With batch norms of statistics that say something."""
    model = build_model({"name": "densenet", "options": {**_SMALL, "form": form}}, 10, _SHAPE)
    generator = torch.Generator().manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.2, generator=generator)
            layer.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.normal_(layer.bias, 0, 0.2, generator=generator)
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=generator)
    return model.eval()


def images(count: int = 8) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def quantized(form: str, **changes: Any) -> tuple[Any, Policy]:
    policy = Policy.from_dict({"preset": "dpu", **changes})
    model, _ = post_training_quantize(densenet(form), policy, images(), policy.methods)
    return model, policy


def integers(form: str, **changes: Any) -> IntegerModel:
    model, policy = quantized(form, **changes)
    return integerize(model.eval(), policy, (3, 16, 16))


def input_of(found: IntegerModel, given: Tensor) -> IntArray:
    """Levels of images, channels last."""
    return found.input_levels(given).permute(0, 2, 3, 1).long().numpy()


def scores_of(found: IntegerModel, given: Tensor) -> IntArray:
    """Scores by the reference interpreter, as integers."""
    return found.graph.run({"x": input_of(found, given)})["scores"]


def evaluated(model: nn.Module, found: IntegerModel, given: Tensor) -> IntArray:
    """The same, from what the converted model gives in evaluation."""
    with torch.no_grad():
        return torch.round(model(given).double() / found.score_scale).long().numpy()


def check_powers(graph: Graph) -> None:
    for node in graph:
        if node.op == "requant":
            multiplier = node.params["multiplier"]
            assert (multiplier == multiplier.flat[0]).all()
            assert log2(multiplier.flat[0]).is_integer()
            assert node.string("rounding") == "half_up"
        for scale in node.attrs.get("weight_scale", ()):
            assert log2(scale).is_integer()
    for kind in graph.types.values():
        assert all(log2(scale).is_integer() for scale in kind.scale)


def test_the_modified_network_is_one_part_of_powers_of_two() -> None:
    found = integers("convolution_first")
    check_powers(found.graph)
    compiled = compile_graph(found.graph, load_architecture("zcu102"))
    assert (compiled.count(ENGINE), compiled.count(CPU)) == (1, 0)
    assert works_of(compiled)


def test_the_original_network_is_several() -> None:
    compiled = compile_graph(integers("preactivated").graph, full_architecture())
    assert compiled.count(ENGINE) > 3 and compiled.count(CPU) > 3
    reasons = {reason for item in compiled.outside for reason in item.reasons}
    assert any("follows no product" in reason for reason in reasons)


@pytest.mark.parametrize("form", ["convolution_first", "preactivated"])
def test_parts_graph_and_evaluation_are_the_same_integers(form: str) -> None:
    model, policy = quantized(form)
    found = integerize(model.eval(), policy, (3, 16, 16))
    given = images(16)
    levels = input_of(found, given)
    wanted = found.graph.run({"x": levels})
    assert np.array_equal(scores_of(found, given), evaluated(model, found, given))
    parts = compile_graph(found.graph, full_architecture()).runner()(levels)
    for edge, value in wanted.items():
        assert np.array_equal(parts[edge], value)


@pytest.mark.parametrize("engine", ["e256", "e2048"])
def test_training_executor_and_the_emulated_program_give_the_same_scores(engine: str) -> None:
    """What training computes in float32 with torch's own convolutions, and the program of our
    engine, which shares nothing with that but the integers; benchmarks/dpu_equality.py does the
    same with the DenseNets of the document, and on RTL.
    """
    model, policy = quantized("convolution_first")
    found = integerize(model.eval(), policy, (3, 16, 16))
    given = images(4)
    levels = {"x": input_of(found, given)}
    wanted = Executor(found.graph).run(levels)
    with torch.no_grad():
        real = model.simulate(given).double()
    scores = torch.round(real / found.score_scale).long().numpy()
    assert np.array_equal(scores, wanted["scores"])
    emulated = compile_for_engine(found.graph, ENGINES[engine]).run(levels)
    assert emulated.keys() == wanted.keys()
    for edge, values in wanted.items():
        assert np.array_equal(emulated[edge], values)


def test_the_mean_error_of_the_scores_is_taken_off_by_biases() -> None:
    """Of weights, activations and biases of one power of two a tensor."""
    with torch.no_grad():
        wanted = densenet("convolution_first")(images())
        errors = []
        for changes in ({}, {"methods": ["fold", "calibrate"]}):
            model, _ = quantized("convolution_first", **changes)
            errors.append((model.eval()(images()) - wanted).mean(dim=0).abs().mean().item())
    corrected, plain = errors
    assert corrected < plain / 2


def test_it_trains_as_it_evaluates() -> None:
    """Every phase trains through these quantizers: one step, then the integers are exact again."""
    model, policy = quantized("convolution_first")
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    given, wanted = images(16), torch.arange(16) % 10
    before = nn.functional.cross_entropy(model(given), wanted)
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(given), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < before.item()
    found = integerize(model.eval(), policy, (3, 16, 16))
    check_powers(found.graph)
    assert not compile_graph(found.graph, full_architecture()).outside
    one = given[:1]  # as an export takes it
    assert np.array_equal(scores_of(found, one), evaluated(model, found, one))


def test_weights_and_quantizers_are_saved_and_loaded(tmp_path: Path) -> None:
    model, policy = quantized("convolution_first")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    example = torch.zeros(1, 3, 16, 16)
    prepared, _ = prepare_network(densenet("convolution_first"), policy.methods, example)
    again = apply(prepared, policy, "train", sample_shape=(3, 16, 16))
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    first = integerize(model.eval(), policy, (3, 16, 16)).graph
    assert integerize(again.eval(), policy, (3, 16, 16)).graph.digest == first.digest


def test_parts_of_a_concatenation_have_one_scale_if_the_policy_says_so() -> None:
    """Behind the last block only an average reads them, for which each could keep its own."""
    shared = integers("convolution_first").graph
    own = integers("convolution_first", concat_scales="own").graph
    (last, *_) = [node for node in reversed(shared.nodes) if node.op == "concat"]
    assert len({shared.types[edge].scale for edge in last.inputs}) == 1
    assert shared.digest == integers("convolution_first", concat_scales="shared").graph.digest
    assert {node.op for node in own} == {node.op for node in shared}


def test_presets_are_written_out_and_changed() -> None:
    fields = {"name": "p", "data": "digits", "model": "digits_cnn"}
    plain = recipe_from_dict({**fields, "quant": "dpu"})
    assert plain.resolved()["quant"]["weight"]["format"] == "dfp8"
    changed = recipe_from_dict(
        {**fields, "quant": {"preset": "dpu", "activation": {"scale": "max"}, "weight": "int8"}}
    )
    assert changed.quant["activation"] == {
        "format": "dfp8", "scale": "max", "rounding": "half_up"
    }  # fmt: skip
    assert changed.quant["weight"] == "int8"
    assert "preset" not in changed.quant
    rules = [{"position": "first", "role": "weight", "scale": "max"}]
    policy = PolicyClass.from_dict({"preset": "dpu", "rules": rules})
    assert len(policy.rules) == len(PolicyClass.from_dict({"preset": "dpu"}).rules) + 1


@pytest.mark.parametrize(
    ("quant", "words"),
    [
        ("dpq", "no preset 'dpq'.*dpu"),
        ({"preset": 3}, "no preset 3"),
        ({"preset": "dpu", "concat_scales": "both"}, "own or shared"),
        ({"preset": "dpu", "weight": {"format": "dfp99"}}, "dfp99.*has 99 bits"),
        ({"preset": "dpu", "weight": {"granularity": "per_channel"}}, "granularity: per_tensor"),
        ({"weight": {"format": "po2_4", "power_of_two": False}}, "is a power of two"),
        ({"activation": {"format": "cb16", "power_of_two": True}}, "cb16"),
    ],
)
def test_a_preset_that_cannot_be_is_refused(quant: Any, words: str) -> None:
    fields = {"name": "p", "data": "digits", "model": "digits_cnn"}
    with pytest.raises(RecipeError, match=words):
        recipe_from_dict({**fields, "quant": quant})


def test_the_published_affine_quantizers() -> None:
    for preset, highest in (("affine8", 255), ("affine4", 15)):
        policy = Policy.from_dict({"preset": preset})
        model, _ = post_training_quantize(
            densenet("preactivated"), policy, images(), policy.methods
        )
        found = integerize(model.eval(), policy, (3, 16, 16))
        codes = [kind.hi - kind.lo for kind in found.graph.types.values() if kind.format]
        assert max(codes[1:]) <= highest
        assert np.array_equal(scores_of(found, images()), evaluated(model, found, images()))


_SOURCES = ("cifar-densenet-dpu", "cifar-densenet21-qkd-dpu", "cifar100-densenet37-qkd-dpu")


@pytest.mark.parametrize("name", _SOURCES)
def test_recipes_of_the_engine_are_as_long_as_published(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.model.options == {"form": "convolution_first"}
    assert Policy.from_dict(recipe.quant) == Policy.from_dict({"preset": "dpu"})
    phases = recipe.train.quantized
    assert phases is not None and recipe.train.float_.epochs == 200
    rows = [(p, c.epochs, c.lr, c.milestones) for p, c in phases.present]
    first = ("self_study", 60, 1e-6, (20, 40))
    if "qkd" not in name:
        assert [row[1:] for row in rows] == [first[1:]]
        return
    assert rows == [
        first, ("co_study", 100, 1e-4, (40, 60, 80)), ("tutor_study", 100, 1e-3, (40, 60, 80))
    ]  # fmt: skip
    assert recipe.teacher[0].model is not None
    assert (
        recipe.teacher[0].model.name
        == {"cifar10": "densenet63", "cifar100": "densenet121"}[recipe.data.name]
    )


def test_the_recipe_of_distillation_in_float_is_as_published() -> None:
    recipe = load_recipe("cifar-densenet21-kd")
    config, learned = recipe.train.float_, recipe.train.float_.distillation
    assert (config.epochs, config.lr, config.divisor) == (200, 0.01, 5)
    assert config.milestones == (60, 100, 120, 140, 160)
    assert learned is not None and (learned.alpha, learned.temperature) == (0.7, 20)
    assert recipe.teacher[0].model is not None and recipe.teacher[0].model.name == "densenet63"
    assert recipe.train.quantized is None  # measured after calibration


def test_recipes_of_the_published_quantizers() -> None:
    four = load_recipe("cifar-densenet-affine4")
    assert four.train.quantized is not None
    ((_, config),) = four.train.quantized.present
    assert (config.epochs, config.lr, config.milestones) == (140, 1e-3, (20, 40, 60, 80, 100, 120))
    eight = load_recipe("cifar-densenet21-qkd-affine8")
    assert Policy.from_dict(eight.quant) == Policy.from_dict({"preset": "affine8"})


@pytest.mark.slow
@pytest.mark.parametrize("depth", [21, 37, 63, 121, 201])
def test_every_modified_densenet_is_one_part(depth: int) -> None:
    model = build_model(
        {"name": f"densenet{depth}", "options": {"form": "convolution_first"}}, 100, (32, 32, 3)
    )
    policy = Policy.from_dict({"preset": "dpu"})
    given = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    converted, _ = post_training_quantize(model.eval(), policy, given, policy.methods)
    found = integerize(converted.eval(), policy, (3, 32, 32))
    compiled = compile_graph(found.graph, load_architecture("zcu102"))
    assert (compiled.count(ENGINE), compiled.count(CPU)) == (1, 0)
    name = f"densenet{depth}"
    if name in known_networks():
        assert [w.to_json() | {"name": ""} for w in works_of(compiled)] == [
            w.to_json() | {"name": ""} for w in known_networks()[name]
        ]
    levels = input_of(found, given[:1])
    assert np.array_equal(
        compiled.runner()(levels)["scores"], found.graph.run({"x": levels})["scores"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "mobilenet_cifar"])
def test_additions_and_depthwise_convolutions_are_the_engines(name: str) -> None:
    options = {"width": 0.25} if "mobile" in name else {}
    model = build_model({"name": name, "options": options}, 10, (32, 32, 3)).eval()
    policy = Policy.from_dict({"preset": "dpu"})
    given = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    converted, _ = post_training_quantize(model, policy, given, policy.methods)
    graph = integerize(converted.eval(), policy, (3, 32, 32)).graph
    assert not compile_graph(graph, full_architecture()).outside
