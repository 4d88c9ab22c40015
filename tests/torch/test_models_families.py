# SPDX-License-Identifier: Apache-2.0
"""ResNet, MobileNet, DenseNet and SkyNet: sizes as published, and options that make no sense."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.models import build_model, googlenet
from bitwright.models.googlenet import Inception
from bitwright.models.skynet import Reorg

CIFAR, IMAGENET, FACE = (32, 32, 3), (224, 224, 3), (80, 80, 3)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "classes", "shape", "expected"),
    [
        # He et al. 2016 print 0.27 M and 0.46 M: option A has 2 752 fewer, 269 722 and 464 154
        ("resnet20", {}, 10, CIFAR, 269_722 + 2_752),
        ("resnet32", {}, 10, CIFAR, 464_154 + 2_752),
        ("resnet18", {}, 10, CIFAR, 11_173_962),
        ("resnet18_imagenet", {}, 1000, IMAGENET, 11_689_512),  # as torchvision's
        ("alexnet", {}, 10, CIFAR, 2_472_266),
        ("alexnet_imagenet", {}, 1000, IMAGENET, 61_100_840),  # as torchvision's
        # A widely used one for CIFAR has 6 166 250: 7 904 biases in front of batch norms
        ("googlenet", {}, 10, CIFAR, 6_166_250 - 7_904),
        ("googlenet_imagenet", {"tower": "3x3"}, 1000, IMAGENET, 6_624_904),  # as torchvision's
        ("squeezenet_imagenet", {}, 1000, IMAGENET, 1_248_424),  # as torchvision's, and the next
        ("squeezenet_imagenet", {"form": "1.1"}, 1000, IMAGENET, 1_235_496),
        ("mobilenet", {}, 1000, IMAGENET, 4_231_976),  # as Keras's trainable ones
        ("mobilenet", {"width": 0.25}, 1000, IMAGENET, 470_072),
        ("mobilenet_cifar", {}, 10, CIFAR, 3_217_226),
        ("densenet21", {}, 100, CIFAR, 419_420),
        ("densenet37", {}, 100, CIFAR, 1_008_964),
        ("densenet63", {}, 100, CIFAR, 2_353_676),
        ("densenet121", {}, 100, CIFAR, 7_048_548),
        ("densenet201", {}, 100, CIFAR, 18_277_220),
        ("densenet21", {}, 10, CIFAR, 419_420 - 12_690),
        ("densenet121", {"stem": "imagenet"}, 1000, IMAGENET, 7_978_856),  # as torchvision's
    ],
)
def test_parameters_are_those_published(name, options, classes, shape, expected) -> None:
    assert parameters(build_model({"name": name, "options": options}, classes, shape)) == expected


@pytest.mark.parametrize(
    ("options", "convolutions", "norms", "expected"),
    [
        ({"blocks": [6]}, 13, 13, 381_888),
        ({"blocks": [6, 12], "final_width": 256}, 39, 38, 1_479_104),
    ],
)
def test_the_face_networks_count_running_statistics_too(
    options, convolutions: int, norms: int, expected: int
) -> None:
    common = {"stem": "imagenet", "bias": True, "final_norm": False}
    model = build_model({"name": "densenet", "options": common | options}, 128, FACE)
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.BatchNorm2d)) == (convolutions, norms)
    state = model.state_dict()
    assert sum(v.numel() for k, v in state.items() if "num_batches" not in k) == expected


@pytest.mark.parametrize("form", ["preactivated", "convolution_first"])
def test_a_strided_stem_halves_the_image_and_adds_no_parameter(form: str) -> None:
    options = {"blocks": [1, 2], "growth": 8, "form": form}
    plain = build_model({"name": "densenet", "options": options}, 10, CIFAR)
    strided = build_model({"name": "densenet", "options": options | {"stem": "strided"}}, 10, CIFAR)
    assert parameters(strided) == parameters(plain)
    assert strided[0](torch.zeros(1, 3, 32, 32)).shape == (1, 16, 16, 16)
    assert isinstance(strided[1], nn.BatchNorm2d) == (form == "convolution_first")
    tiny = {"name": "densenet", "options": options | {"stem": "strided"}}
    assert build_model(tiny, 10, (3, 3, 3)).eval()(torch.zeros(1, 3, 3, 3)).shape == (1, 10)
    with pytest.raises(ModelError, match="too small"):
        build_model(tiny, 10, (2, 2, 3))


def test_convolution_first_puts_every_norm_behind_a_convolution() -> None:
    options = {"form": "convolution_first"}
    model = build_model({"name": "densenet21", "options": options}, 10, CIFAR)
    kinds = [type(m) for m in model.modules() if not list(m.children())]
    for before, here, after in zip(kinds, kinds[1:], kinds[2:], strict=False):
        if here is nn.BatchNorm2d:
            assert before is nn.Conv2d
        if here is nn.ReLU:
            assert before is nn.BatchNorm2d
        if before is nn.Conv2d:
            assert here is nn.BatchNorm2d and after is not nn.BatchNorm2d
    weights = {p.shape for p in model.parameters() if p.ndim == 4}
    plain = build_model("densenet21", 10, CIFAR)
    assert weights == {p.shape for p in plain.parameters() if p.ndim == 4}


@pytest.mark.parametrize("name", ["mobilenet", "mobilenet_cifar"])
@pytest.mark.parametrize("size", [(1, 1), (17, 40), (33, 32)])
def test_mobilenet_takes_images_of_any_size(name: str, size: tuple[int, int]) -> None:
    spec = {"name": name, "options": {"width": 0.25}}
    model = build_model(spec, 3, (*size, 2)).eval()
    assert model(torch.zeros(2, 2, *size)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet20", {"blocks": [3, 3]}, "2 stages of blocks, but 3 widths"),
        ("resnet20", {"blocks": [3, 0, 3]}, "blocks must be positive"),
        ("resnet20", {"widths": "wide"}, "widths must be positive whole numbers, found 'wide'"),
        ("resnet20", {"stem": "vgg"}, "unknown stem 'vgg'"),
        ("mobilenet", {"width": 0}, "width must lie above 0"),
        ("mobilenet", {"width": True}, "width must lie above 0"),
        ("mobilenet", {"strides": [1, 2]}, "2 strides for 13"),
        ("mobilenet", {"stem_stride": 1.5}, "stem_stride must be a whole number"),
        ("mobilenet", {"activation": "swish"}, "unknown activation 'swish'"),
        ("alexnet", {"form": "vgg"}, "unknown form 'vgg'"),
        ("alexnet", {"dropout": 1}, "dropout must be at least 0 and below 1, found 1"),
        ("alexnet_imagenet", {}, "too small: nothing is left after pool3"),
        ("googlenet", {"stem": "strided"}, "unknown stem 'strided'"),
        ("googlenet", {"tower": "7x7"}, "unknown tower '7x7'"),
        ("googlenet", {"width": 0}, "width must lie above 0"),
        ("googlenet", {"dropout": True}, "dropout must be at least 0"),
        ("densenet", {"blocks": []}, "blocks must be positive"),
        ("densenet", {"growth": 0}, "growth must be a whole number from 1 on"),
        ("densenet", {"bottleneck": -1}, "bottleneck must be a whole number from 0 on"),
        ("densenet", {"compression": 1.5}, "compression must lie above 0"),
        ("densenet", {"growth": 1, "compression": 0.1}, "compression leaves none of 3 channels"),
        ("densenet", {"form": "post"}, "unknown form 'post'"),
        ("densenet", {"blocks": [1] * 7}, "too small: nothing is left after transition 6"),
        ("skynet", {"activation": "gelu"}, "unknown activation 'gelu'"),
    ],
)
def test_options_that_make_no_sense_are_named(name: str, options, message: str) -> None:
    classes = None if name == "skynet" else 10
    with pytest.raises(ModelError, match=message):
        build_model({"name": name, "options": options}, classes, CIFAR)


def weights_of(block: nn.Module) -> int:
    return sum(m.weight.numel() for m in block.modules() if isinstance(m, nn.Conv2d))


def test_googlenet_has_the_blocks_of_the_paper() -> None:
    """Szegedy et al. 2015, table 1: channels out, and millions of multiplications a block."""
    model = build_model("googlenet_imagenet", 1000, IMAGENET)
    blocks = [module for module in model if isinstance(module, Inception)]
    pixels = [28 * 28] * 2 + [14 * 14] * 5 + [7 * 7] * 2
    found = [round(weights_of(b) * p / 1e6, 1) for b, p in zip(blocks, pixels, strict=True)]
    printed = [128, 304, 73, 88, 100, 119, 170, 54, 71]
    apart = [at for at, (a, b) in enumerate(zip(found, printed, strict=True)) if abs(a - b) >= 1]
    assert apart == [7]  # 5a is 51.1 by the widths that the paper gives: it has 54 there
    outputs = [256, 480, 512, 512, 512, 528, 832, 832, 1024]
    inputs = [block.one[0].in_channels for block in blocks]
    shapes = [b.eval()(torch.zeros(1, i, 3, 3)).shape for b, i in zip(blocks, inputs, strict=True)]
    assert [shape[1] for shape in shapes] == outputs


@pytest.mark.parametrize("size", [8, 9, 14, 56, 57])
def test_pools_that_round_up_are_padded_ones(size: int) -> None:
    images = torch.rand(2, 3, size, size)
    rounded = nn.MaxPool2d(3, 2, ceil_mode=True)(images)
    assert torch.equal(googlenet._halving("imagenet")(images), rounded)


@pytest.mark.parametrize(
    ("name", "size", "products"),
    [
        ("alexnet", 32, 3 * 5 - 1),
        ("resnet20", 32, 3 * 21 - 1),
        ("resnet18_imagenet", 64, 3 * 20 - 1),
        ("googlenet", 32, 3 * 64 - 1),
        ("googlenet_imagenet", 64, 3 * 57 - 1),  # 170, as published for training it
    ],
)
def test_training_takes_three_products_a_convolution(name: str, size: int, products: int) -> None:
    """Forward, gradient of the weights, and of the input: but nobody asks for the image's."""
    model = build_model(name, 10, (size, size, 3)).train()
    counted = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda layer, inputs, _: counted.append(
                    1 + layer.weight.requires_grad + inputs[0].requires_grad
                )
            )
    model(torch.zeros(2, 3, size, size))
    assert sum(counted) == products


def test_skynet_is_as_large_as_published() -> None:
    model = build_model("skynet", None, (160, 320, 3))
    convolutions = [m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions == [
        27, 144, 432, 4608, 864, 18432, 1728, 73728, 3456, 196608, 11520, 122880, 960
    ]  # fmt: skip
    assert sum(convolutions) == 435_387
    assert parameters(model) == 442_049
    norms = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(norms) == 3_331
    assert model(torch.zeros(2, 3, 48, 72)).shape == (2, 10, 6, 9)


def test_skynet_without_bypass_and_with_relu() -> None:
    options = {"activation": "relu", "bypass": False}
    model = build_model({"name": "skynet", "options": options}, None, (16, 24, 1))
    assert model.model_p3[0][0].in_channels == 512
    assert not any(isinstance(m, nn.ReLU6) for m in model.modules())


def test_skynet_starts_from_kaiming_weights() -> None:
    model = build_model("skynet", None, (16, 16, 3))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            expected = math.sqrt(2 / (module.out_channels * module.weight[0, 0].numel()))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all() and module.bias.eq(0).all()


@pytest.mark.parametrize("shape", [(100, 320, 3), (160, 324, 3), (4, 8, 3), (0, 8, 3)])
def test_skynet_refuses_other_sizes(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ModelError, match="multiples of 8"):
        build_model("skynet", None, shape)


def test_a_detector_is_no_classifier() -> None:
    with pytest.raises(ModelError, match=r"gives \(1, 10, 4, 4\).*scores of shape \(1, 10\)"):
        build_model("skynet", 10, CIFAR)
    with pytest.raises(RecipeError, match="needs the number of classes"):
        build_model("resnet20", None, CIFAR)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_reorg_is_its_closed_form(stride: int) -> None:
    torch.manual_seed(stride)
    n, c, h, w = 2, 5, 2 * stride, 4 * stride
    image = torch.randn(n, c, h, w)
    out = Reorg(stride)(image)
    assert out.shape == (n, stride * stride * c, 2, 4)
    for dy in range(stride):
        for dx in range(stride):
            first = (dy * stride + dx) * c
            assert torch.equal(out[:, first : first + c], image[:, :, dy::stride, dx::stride])


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 2, 4, 5), (2, 4, 4), (4,)])
def test_reorg_refuses_what_it_cannot_cut(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="Reorg"):
        Reorg(2)(torch.zeros(shape))
