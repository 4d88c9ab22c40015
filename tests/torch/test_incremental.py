# SPDX-License-Identifier: Apache-2.0
"""Incremental quantization: bits that fall and portions that are fixed, in the training loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import fx, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.data import DataSplits, load_dataset
from bitwright.lower.compare import compare_edges
from bitwright.models import build_model
from bitwright.pipeline.recipe import recipe_from_dict
from bitwright.quantize import Policy, apply
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.incremental import fix_portion, set_bits
from bitwright.quantize.layers import QuantConv2d, QuantLinear
from bitwright.train import TrainConfig, TrainProgress, fit, load_checkpoint
from bitwright.train.config import Phases

BITS = {"bits": [8, 5], "until": [0.4, 0.6]}
PORTIONS = {"portions": [0.5, 0.75, 1.0]}


@pytest.fixture(scope="module")
def few() -> DataSplits:
    digits = load_dataset("digits")
    return replace(digits, train=digits.train.take(range(0, len(digits.train), 8)))


def config(incremental: dict[str, Any], **settings: Any) -> TrainConfig:
    given = {"epochs": 5, "batch_size": 32, "lr": 5e-3, "weight_decay": 1e-3, **settings}
    return TrainConfig.model_validate({**given, "incremental": incremental})


def quantized(few: DataSplits, scale: str = "learned") -> fx.GraphModule:
    rules = {"minmax": {"scale": "minmax"}, "interval": {"scale": "interval"}, "learned": {}}[scale]
    policy = Policy.from_dict(
        {"weight": {"format": "int3", **rules}, "activation": {"format": "uint3", **rules}}
    )
    images = torch.from_numpy(few.train.take(range(64)).reals())
    return apply(build_model("digits_cnn", 10, (8, 8, 1), seed=1), policy, "train", images)


def same(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(value, states[1][name]) for name, value in states[0].items()
    )


def widths(model: nn.Module) -> set[int]:
    found = {
        module.spec.format.bits
        for module in model.modules()
        if isinstance(module, ActivationQuantizer) and module.role.value != "input"
    }
    return found | {layer.weight_quantizer.spec.format.bits for layer in layers(model)}


def layers(model: nn.Module) -> list[QuantConv2d | QuantLinear]:
    return [m for m in model.modules() if isinstance(m, QuantConv2d | QuantLinear)]


@pytest.mark.parametrize("scale", ["learned", "minmax", "interval"])
def test_bits_fall_while_training_and_end_where_the_policy_is(
    few: DataSplits, tmp_path: Path, scale: str
) -> None:
    model, seen = quantized(few, scale), []

    def note(now: TrainProgress) -> None:
        seen.append((now.epoch, *widths(model)))

    result = fit(model, few, config(BITS), run_dir=tmp_path, on_progress=note)
    assert sorted(set(seen)) == [(1, 8), (2, 8), (3, 5), (4, 3), (5, 3)]
    assert result.kept_epoch in (4, 5), "weights of an earlier stage belong to another network"
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert_integers_agree(model, few)


def assert_integers_agree(model: fx.GraphModule, few: DataSplits) -> None:
    images = torch.from_numpy(few.test.take(range(40)).reals())
    frozen = apply(model, model.meta["bitwright"], "freeze", images)
    compare_edges(frozen.graph, frozen.edges(images)).require()
    with torch.no_grad():
        wanted, got = model(images), frozen(images)
    # Activations of 3 bits are thresholds: nothing is approximated but the order of float sums.
    assert (wanted - got).abs().max() < 1e-4 * wanted.abs().max()


def test_portions_fix_the_largest_weights_and_the_rest_trains_on(few: DataSplits) -> None:
    model = quantized(few).train()
    images, labels = torch.from_numpy(few.train.reals()), torch.from_numpy(few.train.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    fix_portion(model, 0.5)
    fixed = []
    for layer in layers(model):
        quantizer = layer.weight_quantizer
        mask, levels = quantizer.fixed_mask, quantizer.fixed_levels
        assert mask is not None and levels is not None
        assert int(mask.sum()) == round(0.5 * mask.numel())
        magnitude = layer.weight.detach().abs()
        assert magnitude[mask].min() >= magnitude[~mask].max()
        fixed.append((layer, mask.clone(), quantizer(layer.weight).detach()[mask]))
    before = [layer.weight.detach().clone() for layer in layers(model)]
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[:64]), labels[:64].long()).backward()
        optimizer.step()
    for (layer, mask, values), old in zip(fixed, before, strict=True):
        effective = layer.weight_quantizer(layer.weight).detach()
        assert torch.equal(effective[mask], values), "fixed weights stay, whatever the decay"
        assert not torch.equal(layer.weight.detach()[~mask], old[~mask])
        assert torch.equal(effective[~mask], layer.weight.detach()[~mask]), "the rest is real"
        assert not layer.weight.grad[mask].any()
    fix_portion(model, 0.75)
    for layer, mask, values in fixed:
        assert torch.equal(layer.weight_quantizer(layer.weight).detach()[mask], values)
        assert int(layer.weight_quantizer.fixed_mask.sum()) == round(0.75 * mask.numel())
    fix_portion(model, 1.0)
    assert all(
        layer.weight_quantizer.fixed and layer.weight_quantizer.fixed_mask is None
        for layer in layers(model)
    )
    assert_integers_agree(model.eval(), few)


@pytest.mark.parametrize(
    ("kind", "stop_after"),
    [(BITS, 1), (BITS, 2), (PORTIONS, 1), (PORTIONS, 3), ({**BITS, "ema": 0.9}, 3)],
)
def test_a_stopped_run_ends_with_the_same_weights(
    few: DataSplits, tmp_path: Path, kind: dict[str, Any], stop_after: int
) -> None:
    own = {name: value for name, value in kind.items() if name != "ema"}
    settings = config(own, ema=kind.get("ema"))
    whole, resumed = quantized(few), quantized(few)
    fit(whole, few, settings, run_dir=tmp_path / "whole")

    def stop(now: TrainProgress) -> None:
        if now.last is not None and now.last.epoch == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(quantized(few), few, settings, run_dir=tmp_path / "parts", on_progress=stop)
    assert fit(resumed, few, settings, run_dir=tmp_path / "parts").resumed_from == stop_after
    assert same(whole, resumed)


def test_masks_are_in_the_checkpoint(few: DataSplits, tmp_path: Path) -> None:
    def stop(now: TrainProgress) -> None:
        if now.last is not None and now.last.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(quantized(few), few, config(PORTIONS), run_dir=tmp_path, on_progress=stop)
    state = load_checkpoint(tmp_path / "checkpoint.pt")["learners"]["student"]["model"]
    masks = [value for name, value in state.items() if name.endswith("fixed_mask")]
    assert masks and all(mask.dtype is torch.bool and mask.any() for mask in masks)


def test_scales_follow_the_bits(few: DataSplits) -> None:
    model = quantized(few, "interval").train()
    images = torch.from_numpy(few.train.take(range(64)).reals())
    model(images)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert set_bits(model, 8) > 0 and widths(model) == {8}
    for name, value in model.state_dict().items():
        if name.endswith("range"):
            assert torch.equal(value, state[name]), "an interval is the same in any width"
    assert set_bits(model, None) == 0 and widths(model) == {3}
    assert same_values(model.state_dict(), state)


def same_values(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_operands_with_more_bits_keep_them(few: DataSplits) -> None:
    policy = Policy.from_dict(
        {
            "weight": "int3",
            "activation": "uint3",
            "rules": [
                {"position": "first", "role": "weight", "format": "int8"},
                {"position": "last", "role": "weight", "format": "bipolar"},
            ],
        }
    )
    model = apply(build_model("digits_cnn", 10, (8, 8, 1)), policy, "train")
    set_bits(model, 4)
    found = [str(layer.weight_quantizer.spec.format) for layer in layers(model)]
    assert found[0] == "int8n" and set(found[1:]) == {"int4n"}
    set_bits(model, None)
    assert str(layers(model)[-1].weight_quantizer.spec.format) == "bipolar"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either bits or portions"),
        ({"bits": [8], "portions": [1.0]}, "either bits or portions"),
        ({"bits": [4, 8]}, "must fall"),
        ({"bits": [8, 8]}, "must fall"),
        ({"bits": [8, 6], "until": [0.3]}, "1 entries for 3 stages"),
        ({"bits": [8, 6], "until": [0.6, 0.3]}, "until must rise"),
        ({"bits": [8], "until": [1.2]}, "less than 1"),
        ({"portions": [0.5, 0.4, 1.0]}, "must rise"),
        ({"portions": [0.5, 0.9]}, "must end with 1"),
        ({"bits": [8, 7, 6, 5, 4]}, "would have no epoch"),
        ({"bits": [8], "until": [0.95]}, "would have no epoch"),
        ({"bits": [8], "when": 3}, "Extra inputs"),
    ],
)
def test_nonsense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(given)


def test_a_stage_that_changes_nothing_is_refused(few: DataSplits, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a stage of 3 bits changes nothing"):
        fit(quantized(few), few, config({"bits": [8, 3]}), run_dir=tmp_path / "a")
    float_model = build_model("digits_cnn", 10, (8, 8, 1))
    with pytest.raises(ModelError, match="no quantizers"):
        fit(float_model, few, config(BITS), run_dir=tmp_path / "a")
    blocks = apply(float_model, Policy.uniform("mxfp4", "uint4"), "train")
    with pytest.raises(ModelError, match="cannot be fixed in portions"):
        fit(blocks, few, config(PORTIONS), run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists(), "refused before anything is written"


def test_portions_belong_to_the_last_phase() -> None:
    portions = {"epochs": 5, "incremental": PORTIONS}
    with pytest.raises(ValidationError, match="put it into the last phase"):
        Phases.model_validate({"self_study": portions, "tutor_study": {}})
    assert Phases.model_validate({"self_study": {}, "tutor_study": portions}).tutor_study
    with pytest.raises(ValidationError, match="use one of the two"):
        config(PORTIONS, ema=0.99)


def test_a_recipe_lowers_the_bits_of_quantized_training_alone() -> None:
    fields = {"name": "falling", "model": "digits_cnn", "data": "digits"}
    training = {"epochs": 5, "incremental": BITS}
    recipe = recipe_from_dict({**fields, "train": {"quantized": training}})
    assert recipe.train.quantized.self_study.incremental.stages == 3
    with pytest.raises(RecipeError, match="no bits to lower"):
        recipe_from_dict({**fields, "train": {"float": training}})
    teacher = {"model": "digits_cnn", "train": training}
    with pytest.raises(RecipeError, match="no bits to lower"):
        recipe_from_dict({**fields, "teacher": teacher})
