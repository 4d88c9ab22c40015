# SPDX-License-Identifier: Apache-2.0
"""Models for distillation: exact sizes, modules all the way, and every model in every phase."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.ptq_networks import enliven, largest_difference
from torch import nn

from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.cli import entry as cli
from bitwright.data import Dataset, DataSplits
from bitwright.explore.memory import memory_table
from bitwright.explore.sizes import parameter_mb
from bitwright.models import ModelInfo, build_model, list_models
from bitwright.models.densenet import Concat, DenseLayer
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import fold_batch_norms, folding_of
from bitwright.quantize.trace import trace
from bitwright.train import Phases, study

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
#: Parameters and MB at 32, 8 and 4 bits as published; DenseNets with 100 classes.
PUBLISHED = {
    "densenet21": (419_420, "1.60", "0.40", "0.20"),
    "densenet37": (1_008_964, "3.85", "0.96", "0.48"),
    "densenet63": (2_353_676, "8.98", "2.24", "1.12"),
    "densenet105": (5_358_244, "20.44", "5.11", "2.56"),
    "densenet121": (7_048_548, "26.89", "6.72", "3.36"),
    "densenet201": (18_277_220, "69.72", "17.43", "8.72"),
    "kl_mlp_teacher": (2_395_210, "9.14", "2.28", "1.14"),
    "dnn1200": (2_395_210, "9.14", "2.28", "1.14"),
    "kl_mlp_student": (328_810, "1.25", "0.31", "0.16"),
    "dnn300": (328_810, "1.25", "0.31", "0.16"),
    "dnn30": (24_790, "0.09", "0.02", "0.01"),
    "dnn800": (1_276_810, "4.87", "1.22", "0.61"),
}
CHEAP = ["densenet21", "densenet63", "densenet105", "dnn30", "dnn800", "kl_mlp_teacher"]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["dnn30", "dnn300", "dnn800", "dnn1200", "kl_mlp_student"])
def test_the_perceptrons_have_biases_and_no_norm(name: str) -> None:
    model = build_model(name, 10, MNIST)
    assert parameters(model) == PUBLISHED[name][0]
    kinds = [type(module).__name__ for module in model]
    assert kinds == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert all(m.bias is not None for m in model if isinstance(m, nn.Linear))


def test_the_pairs_are_two_names_of_one_network() -> None:
    known = {info.name: info for info in list_models()}
    for first, second in (("dnn300", "kl_mlp_student"), ("dnn1200", "kl_mlp_teacher")):
        assert known[first].factory == known[second].factory
        assert known[first].options == known[second].options


def test_batch_norm_is_a_yes_or_no() -> None:
    with pytest.raises(ModelError, match="batch_norm must be true or false, found 'off'"):
        build_model({"name": "mlp", "options": {"batch_norm": "off"}}, 10, MNIST)


@pytest.mark.parametrize("name", CHEAP)
def test_memory_is_as_published(name: str) -> None:
    """The rest of the table, of larger networks, by its parameters: counted in other tests."""
    (row,) = memory_table([name], classes=100 if name.startswith("densenet") else None)
    assert (row.parameters, *(f"{mb:.2f}" for mb in row.mb.values())) == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in CHEAP])
def test_memory_follows_from_the_count(name: str) -> None:
    count, *sizes = PUBLISHED[name]
    assert [f"{parameter_mb(count, bits):.2f}" for bits in (32, 8, 4)] == sizes


@pytest.mark.parametrize(
    ("name", "blocks", "expected"),
    [
        # as torchvision's 169 and 201; both counts and 264's by the closed form below as well
        ("densenet169", (6, 12, 32, 32), 14_149_480),
        ("densenet201", (6, 12, 48, 32), 20_013_928),
        ("densenet264", (6, 12, 64, 48), 33_337_704),
    ],
)
def test_the_large_ones_by_their_blocks(name: str, blocks: Any, expected: int) -> None:
    """ImageNet stem, 1000 classes: the sum over layers is the published count."""
    known = {info.name: info for info in list_models()}
    assert known[name].options["blocks"] == blocks
    count, channels = 3 * 64 * 49 + 128, 64
    for number, layers in enumerate(blocks):
        if number:
            count += 2 * channels + channels * (channels // 2)
            channels //= 2
        for _ in range(layers):
            count += 2 * channels + channels * 128 + 2 * 128 + 128 * 32 * 9
            channels += 32
    assert count + 2 * channels + 1000 * channels + 1000 == expected


def test_the_closed_form_is_the_model() -> None:
    options = {"stem": "imagenet", "transition_activation": True}
    model = build_model({"name": "densenet121", "options": options}, 1000, (32, 32, 3))
    assert parameters(model) == 7_978_856


def test_memory_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["memory", "densenet21", "--classes", "100"]) == 0
    assert "419420" in capsys.readouterr().out
    assert cli.run(["memory", "dnn30", "digits", "--bits", "2,1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["parameters"] for row in rows] == [24_790, 1_922]
    assert rows[0]["mb"] == {"2": 24_790 / 4 / 2**20, "1": 24_790 / 8 / 2**20}
    assert [row["input_shape"] for row in rows] == [[28, 28, 1], [8, 8, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "none of these: model of the zoo, recipe"),
        (["dnn30", "--bits", "8;4"], "no list of widths"),
        (["dnn30", "--bits", "0"], "no list of widths"),
        (["dnn30", "--input-shape", "28"], "no height x width x channels"),
        (["my_module:net"], "size of an image is needed"),
    ],
)
def test_memory_says_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["memory", *arguments]) == RecipeError.exit_code
    assert message in capsys.readouterr().err


def test_no_memory_of_nothing() -> None:
    assert parameter_mb(2**20, 8) == 1.0
    for parameters, bits in ((-1, 8), (8, 0)):
        with pytest.raises(FormatError, match="parameters of"):
            parameter_mb(parameters, bits)


@pytest.mark.parametrize("form", ["preactivated", "convolution_first"])
def test_every_operation_of_a_densenet_is_a_module(form: str) -> None:
    model = build_model({"name": "densenet21", "options": {"form": form}}, 10, CIFAR)
    graph = torch.fx.Tracer().trace(model)  # containers are traced into, layers of torch are leaves
    own = [node for node in graph.nodes if node.op == "call_function"]
    assert {node.target for node in own} == {torch.cat}
    joins = [name for name, module in model.named_modules() if isinstance(module, Concat)]
    layers = [name for name, module in model.named_modules() if isinstance(module, DenseLayer)]
    assert joins == [f"{name}.join" for name in layers] and len(own) == len(joins) == 8
    assert any(isinstance(module, nn.Flatten) for module in model)
    assert not [name for name in model.state_dict() if "join" in name]
    assert [n.target for n in trace(model).nodes if n.op == "call_function"] == [torch.cat] * 8


def test_a_modified_densenet_folds_all_its_norms() -> None:
    options = {"form": "convolution_first", "growth": 8}
    model = enliven(build_model({"name": "densenet21", "options": options}, 10, CIFAR))
    x = torch.rand(2, 3, 32, 32)
    folded = fold_batch_norms(model, x)
    folding = folding_of(folded)
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert norms == len(folding.norms) == folding.layers_removed > 0
    assert all(norm.merged for norm in folding.norms)
    assert largest_difference(model, folded, x) < 1e-5  # of scores of several tens, in float32
    exact, x = model.double(), x.double()
    with torch.no_grad():
        assert float((exact(x) - fold_batch_norms(exact)(x)).abs().max()) < 1e-9


def test_a_norm_without_a_product_before_it_is_reported() -> None:
    model = enliven(build_model({"name": "densenet21", "options": {"growth": 8}}, 10, CIFAR))
    folded = fold_batch_norms(model)
    apart = [norm.path for norm in folding_of(folded).norms if not norm.merged]
    assert apart  # a stand-alone scale and shift each, and still the same function
    assert largest_difference(model, folded, torch.rand(2, 3, 32, 32)) < 1e-5


# Every model in every phase.

_TINY: dict[str, dict[str, Any]] = {
    "plain:plain_cnn": {},
    "plain:lenet": {"widths": (2, 4, 8, 8)},
    "plain:cnv": {"widths": (4, 4, 4, 8)},
    "mobilenet:mobilenet": {"width": 0.05},
    "alexnet:alexnet": {"width": 0.05},
    "googlenet:googlenet": {"width": 0.04},
    "squeezenet:squeezenet": {"width": 0.1},
    "densenet:densenet": {"growth": 4, "bottleneck": 2},
    "bitwright.papers.faces.face_densenet:face_densenet": {
        "growth": 4,
        "bottleneck": 2,
        "embedding": 10,
    },
    "skynet:skynet": {},
}
_IMAGE = {
    "plain:lenet": (20, 20, 1),
    "skynet:skynet": (16, 16, 3),
    "mobilenet:mobilenet": CIFAR,
    "alexnet:alexnet": (64, 64, 3),
    "squeezenet:squeezenet": (48, 48, 3),
}
_SMALL = (16, 16, 1)


def tiny(info: ModelInfo) -> tuple[str, dict[str, Any], tuple[int, int, int]]:
    """A model of the zoo as narrow as can be, with the structure that its options give it."""
    options: dict[str, Any] = dict(info.options) | _TINY.get(info.factory, {})
    if info.factory in ("plain:mlp", "plain:plain_cnn") and "widths" in options:
        options["widths"] = (6,) * len(options["widths"])
    if "blocks" in options:
        options["blocks"] = (1,) * len(options["blocks"])
        if info.factory.startswith("resnet"):
            options["widths"] = (4, 8, 8, 8)[: len(options["blocks"])]
    elif info.factory.startswith("resnet"):
        options |= {"blocks": (1, 1, 1), "widths": (4, 8, 8)}
    if info.name == "face_densenet20":
        options["final_width"] = 8
    shape = _IMAGE.get(info.factory, _SMALL)
    if info.factory == "plain:cnv" or options.get("stem") == "imagenet":
        shape = CIFAR
    return info.name, options, shape


#: They have tests of their own (test_tasks, test_signals, test_skynet_search).
_NO_CLASSIFIERS_OF_IMAGES = ("box_cnn", "bundle_net", "unet", "signal_cnn")


def cases() -> list[Any]:
    """One case for every structure; names that differ in width or depth alone share one."""
    found: dict[str, Any] = {}
    for info in list_models():
        if info.name in _NO_CLASSIFIERS_OF_IMAGES:
            continue
        name, options, shape = tiny(info)
        key = json.dumps([info.factory, options, shape], sort_keys=True)
        found.setdefault(key, pytest.param(name, options, shape, id=name))
    more = ("densenet21", "convolution_first"), ("densenet", "convolution_first")
    for name, form in more:
        info = next(info for info in list_models() if info.name == name)
        _, options, shape = tiny(info)
        case = pytest.param(name, {**options, "form": form}, shape, id=f"{name}-{form}")
        found[f"{name} {form}"] = case
    return list(found.values())


def made(shape: tuple[int, int, int], classes: int = 10) -> DataSplits:
    random = np.random.RandomState(0)
    names = tuple(str(number) for number in range(classes))

    def part(count: int, first: int) -> Dataset:
        images = random.randint(0, 256, (count, *shape)).astype(np.uint8)
        labels = (np.arange(count) % classes).astype(np.int64)
        indices = np.arange(first, first + count, dtype=np.int64)
        return Dataset("made", images, labels, names, 1 / 255, indices)

    return DataSplits("made", part(24, 0), part(10, 24), part(10, 34), "made")


def built(name: str, options: dict[str, Any], shape: tuple[int, int, int]) -> nn.Module:
    """A classifier; of a detector, one that averages its grid."""
    own = name == "skynet" or name.startswith("face")
    model = build_model({"name": name, "options": options}, None if own else 10, shape, seed=1)
    if name == "skynet":
        return nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return model


_STEPS = {"epochs": 1, "batch_size": 12, "lr": 1e-3, "threads": 1, "keep": "last"}
ALL = Phases.model_validate(
    {
        "self_study": _STEPS,
        "co_study": {**_STEPS, "peer": {}, "distillation": {"alpha": 0.7, "temperature": 4}},
        "tutor_study": {**_STEPS, "distillation": {"alpha": 0.7, "temperature": 4}},
    }
)


@pytest.fixture
def without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For residual networks of 4 to 8 channels, oneDNN's gradient of a convolution's weights writes
    beyond its memory (torch 2.13, on AVX-512); those of the zoo are wider.
    """
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize(("name", "options", "shape"), cases())
def test_every_model_works_in_every_phase_at_4_bits(
    tmp_path: Path, name: str, options: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    splits = made(shape)
    images = torch.from_numpy(splits.train.reals())
    teacher, policy = built(name, options, shape), Policy.uniform("int4", "uint4", "uint8")
    student = apply(built(name, options, shape), policy, "train", images)
    before = {key: value.clone() for key, value in student.state_dict().items()}
    results = study(student, splits, ALL, run_dir=tmp_path, teacher=teacher)
    assert [entry.name for entry in results] == ["self_study", "co_study", "tutor_study"]
    losses = [row.train_loss for entry in results for row in entry.result.history]
    assert len(losses) == 3 and all(math.isfinite(loss) for loss in losses)
    trained = dict(student.named_parameters())
    still = [key for key, value in trained.items() if torch.equal(value, before[key])]
    assert not [key for key in still if trained[key].ndim > 1], "weights that did not learn"
    frozen = apply(student, policy, "freeze")
    with torch.no_grad():
        simulated, integers = student.eval()(images), frozen(images)
    # The integers are the definition; the simulation in float32 may round a tie another way.
    scale = float(simulated.abs().max())
    near = (simulated - integers).abs().amax(1) <= 1e-5 * scale
    assert float(near.float().mean()) >= 0.9, float((simulated - integers).abs().max()) / scale
