# SPDX-License-Identifier: Apache-2.0
"""Products of real networks counted, costs measured on this machine, the verb `forecast`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from bitwright.base.errors import BitwrightError, ModelError
from bitwright.base.figures import Source
from bitwright.cli.app import app
from bitwright.explore.forecast import ForecastRequest, forecast
from bitwright.low_precision.arithmetic.apply import apply_arithmetic, layer_formats
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Product
from bitwright.low_precision.arithmetic.layers import Context
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.cases import possible_schedules
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.formats import device_costs, levels_of_products
from bitwright.low_precision.costs.given import read_costs
from bitwright.low_precision.costs.log import epoch_seconds
from bitwright.low_precision.costs.model import Variant
from bitwright.low_precision.costs.profiler import Setup, profile_network
from bitwright.low_precision.costs.schedule import Schedule
from bitwright.low_precision.log import write_log
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.policy import PRODUCTS, Entry, EpochSeen, Plan
from bitwright.models import build_model
from bitwright.pipeline.recipe import load_recipe
from bitwright.train.records import EpochMetrics, write_metrics


def small() -> nn.Module:
    """A stride, a group, a frozen layer and a head."""
    torch.manual_seed(0)
    frozen = nn.Conv2d(4, 4, 1, bias=False).requires_grad_(False)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        frozen,
        nn.Conv2d(4, 8, 3, padding="same", groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def test_the_names_of_products_are_those_of_the_arithmetic() -> None:
    assert tuple(product.value for product in Product) == PRODUCTS


@pytest.mark.parametrize(
    ("name", "shape", "convolutions", "products"),
    [
        ("googlenet_imagenet", (224, 224, 3), 57, 170),
        ("resnet20", (32, 32, 3), 21, 62),
        ("alexnet_imagenet", (224, 224, 3), 5, 14),
        ("squeezenet_imagenet", (224, 224, 3), 26, 77),
    ],
)
def test_the_products_of_known_networks(
    name: str, shape: tuple[int, int, int], convolutions: int, products: int
) -> None:
    """GoogLeNet trains with 170 convolutions: 57 layers times 3 less the first layer's gradient of
    its input (Vink 2023). The same document counts 63 for ResNet-20: 21 layers times 3, that one
    gradient with them.
    """
    network = count_network(build_model(name, 10, shape), (3, *shape[:2]), 2)
    convs = [layer for layer in network.layers if layer.kind == "conv"]
    assert len(convs) == convolutions
    assert sum(len(layer.products) for layer in convs) == products
    missing = [layer for layer in network.layers if "grad_input" not in layer.products]
    assert missing == [network.layers[0]]


@pytest.mark.parametrize("name", ["resnet20", "densenet21"])
def test_multiplications_are_what_torch_counts(name: str) -> None:
    model = build_model(name, 10, (32, 32, 3))
    found = count_network(model, (3, 32, 32), 2)
    counter = FlopCounterMode(display=False)
    with counter:
        model.train()(torch.rand(2, 3, 32, 32)).sum().backward()
    assert 2 * found.macs == counter.get_total_flops()


def test_grouped_multiplications_are_what_torch_counts() -> None:
    """Of the forward pass: on the way back torch counts as if there were no groups."""
    model = build_model("mobilenet_cifar", 10, (32, 32, 3))
    found = count_network(model, (3, 32, 32), 2)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.train()(torch.rand(2, 3, 32, 32))
    forward = sum(each.macs for each in found.products if each.product == "forward")
    assert 2 * forward == counter.get_total_flops()


def test_only_products_that_training_needs_are_counted() -> None:
    model = small()
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = count_network(model, (2, 9, 9), 4, "small")
    assert [(layer.layer, layer.products) for layer in network.layers] == [
        ("0", ("forward", "grad_weight")),
        ("3", ("forward", "grad_input")),
        ("4", PRODUCTS),
        ("7", PRODUCTS),
    ]
    assert network.layers[2].padding == (1, 1)
    assert network.layers[2].product("forward").macs == 4 * 25 * 8 * 2 * 9
    # it is left as it was
    assert not model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_what_else_a_step_moves() -> None:
    """Batch norm, ReLU and their ways back, each tensor once an operation."""
    network = count_network(small(), (2, 9, 9), 4)
    image = 4 * 4 * 5 * 5 * 4  # bytes behind the first layer
    assert network.rest_operations >= 8
    assert network.rest_bytes >= 2 * (2 + 2) * image
    larger = count_network(small(), (2, 9, 9), 8)
    assert network.rest_bytes < larger.rest_bytes < 2.1 * network.rest_bytes


class Looks(nn.Module):
    """Branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if float(out.sum()) > 0 else -out


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be counted") as caught:
        count_network(small(), (3, 9, 9))
    assert caught.value.hint
    with pytest.raises(ModelError, match="cannot be counted"):
        count_network(Looks(), (2, 9, 9))
    with pytest.raises(ModelError, match="no convolution or linear layer"):
        count_network(nn.Sequential(nn.ReLU()), (2, 9, 9))


def test_rules_give_products_levels_of_their_own() -> None:
    settings = LowPrecision(
        ladder=["int8", "float32"],
        rules=[
            {"position": "first", "keep_float": True},
            {"layers": "4", "product": "grad_weight", "format": "int16"},
        ],
    )
    network = count_network(small(), (2, 9, 9))
    found = levels_of_products(settings, 0, network)
    assert Counter(found.values()) == {"float32": 3, "int16": 1, "int8": 8}
    assert found["4", "grad_weight"] == "int16"
    assert set(levels_of_products(settings, 1, network).values()) == {"float32"}


def test_first_and_last_are_what_training_takes_for_them() -> None:
    settings = LowPrecision(
        ladder=["int8", "float32"],
        rules=[
            {"position": "first", "keep_float": True},
            {"position": "last", "format": "int12"},
        ],
    )
    model = build_model("resnet20", 10, (32, 32, 3))
    found = levels_of_products(settings, 0, count_network(model, (3, 32, 32)))
    kept = {layer for (layer, _), level in found.items() if level == "float32"}
    wide = {layer for (layer, _), level in found.items() if level == "int12"}
    assert (kept, wide) == ({"stem.0"}, {"fc"})
    target = apply_arithmetic(model, Context(EmulatedEngine()))
    policy = settings.arithmetic(0)
    for path, formats in layer_formats(policy, target.layers).items():
        for product in Product:
            spec = formats.of(product).left
            assert found[path, product] == ("float32" if spec is None else spec.format.name)


def test_a_profile_holds_every_product_at_every_level(tmp_path: Path) -> None:
    settings = LowPrecision(ladder=["int8", "int12", "float32"])
    model = small()
    made = profile_network(
        model, (2, 9, 9), settings, EmulatedEngine(), Setup(batch=4, steps=7, repeats=2), name="s"
    )
    assert made.source is Source.MEASUREMENT
    assert set(made.levels) == {"float32", "int8", "int12"}
    wanted = [(p.layer, p.product) for p in count_network(model, (2, 9, 9), 4).products]
    for name, level in made.levels.items():
        assert [(each.layer, each.part) for each in level.products] == wanted
        assert all(each.cost.seconds > 0 for each in level.products)
        parts = Counter(each.part for each in level.quantize)
        if name == "float32":
            assert not parts
        else:
            # three weight gradients and four gradients of outputs
            assert parts == {"weights": 4, "activations": 4, "gradients": 7}
    few = made.epoch("int8")
    assert few.policy.seconds > 0
    assert made.epoch("int8", Variant.IDEAL).total.seconds < few.total.seconds
    run = made.run(Schedule.of_levels("x", ["int8", "int8", "float32"]))
    assert run.to_json()["total"]["time"]["source"] == "measurement"
    assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": "resolution", "resolution": 2},
        {"count": "exceeds"},
        {"history": "clear"},
        {"violations": "consecutive", "epoch": "since_switch"},
    ],
)
def test_muppet_can_climb_as_soon_as_forecast_and_no_sooner(changes: dict[str, object]) -> None:
    """A metric that falls all the time is a violation whenever there is one to compare with."""
    settings = LowPrecision(policy={"kind": "muppet", **changes}, float_epochs=3)
    ladder = settings.ladder
    plan = Plan(("a",), len(ladder), settings.float_level, 60, 3, 1, names=ladder)
    (soonest, *_) = possible_schedules(settings, plan)
    policy = make_policy(settings, plan)
    falling = iter(10.0**-n for n in range(60))
    policy.metric = lambda window: next(falling)
    seen: list[str] = []
    while not policy.done(len(seen)):
        seen.append(ladder[policy.level(len(seen))])
        policy.after_epoch(EpochSeen(len(seen) - 1, {"a": torch.ones(3)}))
    assert str(Schedule.of_levels("x", seen)) == str(soonest)


# The verb

RUNNER = CliRunner()
RECIPE = ["forecast", "cifar-resnet20-w4a4", "--images", "5000"]


def called(*more: str) -> dict[str, object]:
    done = RUNNER.invoke(app, [*RECIPE, "--json", *more], catch_exceptions=False)
    assert done.exit_code == 0
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_forecast_on_a_device(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = called("--device", "rtx-2080-ti", "--schedule", "int8:4,float32:2", "--out", str(out))
    (costs,) = found["costs"]
    assert costs["source"] == "model"
    assert set(costs["levels"]) == {"float32", "float16", "int8", "int12", "int14", "int16"}
    current, ideal, mixed = costs["schedules"]
    assert (current["variant"], ideal["variant"], mixed["schedule"]) == (
        "current", "ideal", "mixed precision",
    )  # fmt: skip
    assert ideal["total"]["time"]["value"] < current["total"]["time"]["value"]
    assert current["total"]["energy"]["unit"] == "J"
    assert {p.suffix for p in out.iterdir()} == {".md", ".json", ".html", ".csv"}
    # what was written can be given again
    again = called("--costs", str(out / "costs.json"), "--schedule", "int8:4,float32:2")
    total = again["costs"][0]["schedules"][0]["total"]
    for figure, given in current["total"].items():
        assert total[figure]["value"] == pytest.approx(given["value"])
    assert read_costs(out / "costs.json").facts["batch"] == "128"


def test_all_devices_are_compared_by_default() -> None:
    found = called()
    names = [each["name"] for each in found["costs"]]
    assert "resnet20 on h200-sxm" in names
    for each in found["costs"]:
        schedules = [run["schedule"] for run in each["schedules"]]
        assert {"soonest", "latest", "mixed precision"} <= set(schedules)
    done = RUNNER.invoke(app, RECIPE, catch_exceptions=False)
    assert "resnet20" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--device", "gtx"], "unknown device 'gtx'"),
        (["--schedule", "int9:3"], "'int9' is not on the ladder"),
        (["--schedule", "int8"], "no phase of a schedule"),
        (["--schedule", "none.jsonl"], "cannot be read"),
        (["--costs", "none.toml"], "cannot be read"),
        (["--set", "train.float.batch_size=8192"], "less than one batch"),
        (["--input-shape", "8x8"], "no height x width x channels"),
    ],
)
def test_a_bad_call_is_explained(more: list[str], message: str) -> None:
    with pytest.raises(BitwrightError, match=message) as caught:
        RUNNER.invoke(app, [*RECIPE, *more], catch_exceptions=False)
    assert caught.value.where
    assert caught.value.hint


def test_a_run_is_set_beside_the_model(tmp_path: Path) -> None:
    """As far as it has been trained, estimated as its log would have it."""
    low = {"policy": "muppet", "ladder": [8, "float32"], "float_epochs": 2}
    recipe = load_recipe("cifar-resnet20-w4a4", [f"train.float.low_precision={json.dumps(low)}"])
    logs = tmp_path / "01-train" / "logs"
    logs.mkdir(parents=True)
    entries = [Entry(1, "int8", "so"), Entry(2, "float32", "so")]
    write_log(logs / "precision.jsonl", entries)
    seconds = [EpochMetrics(i, 0.1, 1.0, 0.5, 1.0, 0.5, seconds=4.0) for i in (1, 2)]
    write_metrics(logs / "metrics.jsonl", seconds)
    request = ForecastRequest(
        recipe, ("epyc-avx2",), schedules=("int8:1,float32:1",), run_dir=tmp_path, images=1280
    )
    made = forecast(request)
    (found,) = made.found
    model = build_model("resnet20", 10, (32, 32, 3))
    config = recipe.train.float_
    assert config.low_precision is not None
    costs = device_costs(
        model, (3, 32, 32), config.low_precision, config.batch_size, 1280, "epyc-avx2"
    )
    assert [row.measured for row in found.times] == [4.0, 4.0]
    assert [row.modelled for row in found.times] == [epoch_seconds(e, costs) for e in entries]
    assert made.tables()[-1].cells()[-1][:2] == ["total", "2"]


def test_a_recipe_is_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no runs of somebody else
    ladder = 'train.float.low_precision={"policy": "muppet", "ladder": [8, "float32"]}'
    epochs = "train.float.epochs=60"
    done = RUNNER.invoke(
        app,
        ["forecast", "digits", "--profile", "--json", "--set", ladder, "--set", epochs],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    (costs,) = json.loads(done.stdout)["costs"]
    assert costs["source"] == "measurement"
    assert costs["levels"]["int8"]["current"]["products"]["time"]["value"] > 0
    assert "spread" in costs["levels"]["int8"]["current"]["total"]
    assert [run["schedule"] for run in costs["schedules"][::2]] == ["soonest", "latest"]


def test_numbers_that_are_missing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(
        'name = "x"\nsource = "given"\nsteps = 1\nrest = 1\n'
        '[[level]]\nname = "float32"\nproducts = 1\n'
    )
    with pytest.raises(BitwrightError, match="no numbers for level 'int8'"):
        RUNNER.invoke(app, [*RECIPE, "--costs", str(path)], catch_exceptions=False)
