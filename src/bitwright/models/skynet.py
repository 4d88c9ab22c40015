# SPDX-License-Identifier: Apache-2.0
"""SkyNet, the single-object detector that won the DAC-SDC contest of 2019 (Zhang et al. 2020).

Six bundles of a depthwise 3 x 3 and a 1 x 1 convolution, a bypass around two of them, and a 1 x 1
convolution that gives ten numbers for each 8 x 8 pixels: for each of two anchors a box (4) and a
confidence. Layer names are those of the published weights.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.data.detection_boxes import ANCHORS
from bitwright.models.common import (
    Shape,
    activation_layer,
    check_options,
    initialise,
    scaled,
)
from bitwright.models.mobilenet import separable

#: Output pixels are this many input pixels apart.
STRIDE = 8
#: Numbers an anchor: x, y, width, height, confidence.
BOX_FIELDS = 5
OUTPUTS = len(ANCHORS) * BOX_FIELDS
#: Channels behind each of the six bundles.
_WIDTHS = (48, 96, 192, 384, 512, 96)
_LEAST = 8


class Reorg(nn.Module):
    """Space to depth: ``out[(dy*s + dx)*C + c, y, x] = in[c, y*s + dy, x*s + dx]``."""

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, s*s*C, H/s, W/s).

        Raises:
            ModelError: the tensor has not four axes, or H or W is no multiple of s.
        """
        if isinstance(x, Tensor):  # while torch.fx traces the model there are no sizes to check
            self._check(x)
        s = self.stride
        n, c, h, w = x.size(0), x.size(1), x.size(2), x.size(3)
        x = x.view(n, c, h // s, s, w // s, s).transpose(3, 4).contiguous()
        x = x.view(n, c, (h // s) * (w // s), s * s).transpose(2, 3).contiguous()
        x = x.view(n, c, s * s, h // s, w // s).transpose(1, 2).contiguous()
        return x.view(n, s * s * c, h // s, w // s)

    def _check(self, x: Tensor) -> None:
        if x.dim() != 4:
            raise ModelError(f"takes (N, C, H, W), found {x.dim()} axes", where="Reorg")
        if x.shape[2] % self.stride or x.shape[3] % self.stride:
            raise ModelError(
                f"{x.shape[2]} x {x.shape[3]} pixels cannot be cut into squares of {self.stride}",
                where="Reorg",
            )


class SkyNet(nn.Module):
    """The network; images (N, 3, H, W) with H and W multiples of 8 give (N, 10, H/8, W/8).

    Args:
        activation: ``relu6`` as published, or ``relu``.
        bypass: whether the third bundle's output also goes around the fourth and fifth.
        inputs, outputs: channels of the image and of the last convolution.
        width: share of the channels behind each bundle.
        per_group: of the initial weights, see `models.common.initialise`; as published without.
        points: behind each pool and the concatenation stands a layer that does nothing, where a
            policy may quantize anew (rules for the type ``Hardtanh``): the document's "variant B".
    """

    def __init__(
        self,
        *,
        activation: str = "relu6",
        bypass: bool = True,
        inputs: int = 3,
        outputs: int = OUTPUTS,
        width: float = 1.0,
        per_group: bool = False,
        points: bool = False,
    ) -> None:
        super().__init__()
        layer = activation_layer("skynet", activation)
        one, two, three, four, five, six = (scaled(each, width, _LEAST) for each in _WIDTHS)
        self.model_p1 = nn.Sequential(
            separable(inputs, one, 1, layer),
            _pool(points),
            separable(one, two, 1, layer),
            _pool(points),
            separable(two, three, 1, layer),
        )
        self.reorg = Reorg(2) if bypass else None
        self.model_p2 = nn.Sequential(
            _pool(points), separable(three, four, 1, layer), separable(four, five, 1, layer)
        )
        self.joint = _point() if points else None
        joined = five + (4 * three if bypass else 0)
        self.model_p3 = nn.Sequential(
            separable(joined, six, 1, layer), nn.Conv2d(six, outputs, 1, bias=False)
        )
        initialise(self, per_group=per_group)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, 10, H/8, W/8), the raw numbers of the last convolution."""
        early = self.model_p1(x)
        late = self.model_p2(early)
        if self.reorg is not None:
            late = torch.cat([self.reorg(early), late], 1)
        if self.joint is not None:
            late = self.joint(late)
        return self.model_p3(late)


def _pool(points: bool) -> nn.Module:
    pool = nn.MaxPool2d(2, 2)
    return nn.Sequential(pool, _point()) if points else pool


def _point() -> nn.Module:
    """Gives what it takes; an activation to a policy."""
    return nn.Hardtanh(-math.inf, math.inf)


def skynet(
    input_shape: Shape,
    *,
    num_outputs: int = OUTPUTS,
    activation: str = "relu6",
    bypass: bool = True,
    width: float = 1.0,
    scratch: bool = False,
    points: bool = False,
) -> SkyNet:
    """SkyNet with fresh weights: 435 387 convolution weights, 442 049 parameters.

    Args:
        input_shape: (H, W, C) of an image; H and W must be multiples of 8.
        num_outputs: channels of the last convolution: those of two anchors without classes, as
            published, unless the task needs others.
        activation: ``relu6`` or ``relu``.
        bypass: whether there is a bypass.
        width: share of the channels behind each bundle; no layer gets fewer than 8.
        scratch: initial weights from which it can be trained at once: those of depthwise layers are
            not as small as the published program makes them.
        points: layers that do nothing, behind each pool and the concatenation, where a policy may
            quantize anew.

    Raises:
        ModelError: the image has another size, or an option makes no sense.
    """
    check_options("skynet", width=width)
    height, across, channels = input_shape
    if height < STRIDE or across < STRIDE or height % STRIDE or across % STRIDE:
        raise ModelError(
            f"images are {height} x {across}; height and width must be multiples of {STRIDE}",
            where="skynet",
            hint="resize the images; the published weights were trained with 160 x 320",
        )
    return SkyNet(
        activation=activation,
        bypass=bypass,
        inputs=channels,
        outputs=num_outputs,
        width=width,
        per_group=scratch,
        points=points,
    )


def folded_weights(model: SkyNet) -> OrderedDict[str, tuple[Tensor, Tensor]]:
    """Each convolution with its batch norm folded in, by layer name, in float64.

    Returns:
        (weight OIHW, bias O) each; in the order of the layers. The last has a bias of zero.
    """
    folded: OrderedDict[str, tuple[Tensor, Tensor]] = OrderedDict()
    modules = OrderedDict(model.named_modules())
    for name, conv in modules.items():
        if not isinstance(conv, nn.Conv2d):
            continue
        weight = conv.weight.detach().double()
        parent, _, index = name.rpartition(".")
        norm = modules.get(f"{parent}.{int(index) + 1}")
        if isinstance(norm, nn.BatchNorm2d):
            factor = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
            bias = norm.bias.detach().double() - norm.running_mean.double() * factor
            weight = weight * factor[:, None, None, None]
        else:
            bias = torch.zeros(conv.out_channels, dtype=torch.float64)
        folded[name] = (weight, bias)
    return folded
