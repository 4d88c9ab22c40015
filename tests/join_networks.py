# SPDX-License-Identifier: Apache-2.0
"""Small networks whose tensors fork and join, as a user would write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(inputs: int, outputs: int, kernel: int = 3, **options: int) -> nn.Sequential:
    padding = options.pop("padding", kernel // 2)
    conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """ResNet's, with a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.down = None if same else conv_bn(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layers = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 6, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.layers(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


class PreActivation(nn.Module):
    """The residual stream itself has no activation: batch norm and addition both read it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(4)])
        self.conv = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)])
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for first, second in ((0, 1), (2, 3)):
            y = self.conv[first](F.relu(self.bn[first](x)))
            x = x + self.conv[second](F.relu(self.bn[second](y)))
        return self.fc(F.relu(x).mean((2, 3)))


class DenseNet(nn.Module):
    """Pre-activation as published, or with the activation behind the convolution."""

    def __init__(self, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4 + 3 * i if pre else 3) for i in range(3)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(4 + 3 * i, 3, 3, padding=1, bias=False) for i in range(3)]
        )
        self.stem_norm = nn.BatchNorm2d(4)
        self.trans_norm = nn.BatchNorm2d(13)
        self.trans = nn.Conv2d(13, 6, 1, bias=False)
        self.pool = nn.AvgPool2d(2, 2)
        self.last_norm = nn.BatchNorm2d(9)
        self.last = nn.Conv2d(6, 3, 3, padding=1)
        self.fc = nn.Linear(9, 4)

    def block(self, x: Tensor) -> Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            joined = torch.cat(features, 1)
            new = conv(F.relu(norm(joined))) if self.pre else F.relu(norm(conv(joined)))
            features.append(new)
        return torch.cat(features, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.block(x if self.pre else F.relu(self.stem_norm(x)))
        x = self.pool(self.trans(F.relu(self.trans_norm(x))))
        x = torch.cat([x, self.last(x)], 1)
        x = F.adaptive_avg_pool2d(F.relu(self.last_norm(x)), 1)
        return self.fc(x.view(x.size(0), -1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.use_res = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *conv_bn(inputs, hidden, 1),
            nn.ReLU6(inplace=True),
            *conv_bn(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.ReLU6(inplace=True),
            *conv_bn(hidden, outputs, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res else self.conv(x)


class MobileNet(nn.Module):
    """MobileNet V2: a linear residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, 4, stride=2),
            nn.ReLU6(),
            InvertedResidual(4, 4, 1, 2),
            InvertedResidual(4, 4, 1, 2),
            InvertedResidual(4, 6, 2, 2),
            *conv_bn(6, 8, 1),
            nn.ReLU6(),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class ReorgLayer(nn.Module):
    """SkyNet's, as published: views and transposes with size arithmetic and assertions."""

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        stride = self.stride
        assert x.data.dim() == 4
        B = x.data.size(0)
        C = x.data.size(1)
        H = x.data.size(2)
        W = x.data.size(3)
        assert H % stride == 0
        assert W % stride == 0
        ws = stride
        hs = stride
        x = x.view([B, C, H // hs, hs, W // ws, ws]).transpose(3, 4).contiguous()
        x = x.view([B, C, H // hs * W // ws, hs * ws]).transpose(2, 3).contiguous()
        x = x.view([B, C, hs * ws, H // hs, W // ws]).transpose(1, 2).contiguous()
        return x.view([B, hs * ws * C, H // hs, W // ws])


def bundle(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *conv_bn(inputs, inputs, groups=inputs),
        nn.ReLU6(inplace=True),
        *conv_bn(inputs, outputs, 1),
        nn.ReLU6(inplace=True),
    )


class SkyNet(nn.Module):
    """A bypass through the reorganisation; the scores are an image."""

    def __init__(self) -> None:
        super().__init__()
        self.p1 = nn.Sequential(bundle(3, 4), nn.MaxPool2d(2), bundle(4, 5))
        self.reorg = ReorgLayer()
        self.p2 = nn.Sequential(nn.MaxPool2d(2), bundle(5, 6))
        self.p3 = nn.Sequential(bundle(26, 4), nn.Conv2d(4, 10, 1))

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.p1(x)
        x2 = self.p2(x1)
        return self.p3(torch.cat([self.reorg(x1), x2], 1))


class ShuffleUnit(nn.Module):
    """ShuffleNet: grouped convolutions and a channel shuffle written with views."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.again = nn.Conv2d(8, 12, 1, groups=4)
        self.head = nn.Linear(12 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.grouped(x))
        b, c, h, w = x.size()
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        x = F.relu(self.depthwise(x))
        x = F.relu(self.again(x))
        x = F.avg_pool2d(x, h // 2)
        return self.head(x.flatten(1))


class FeaturePyramid(nn.Module):
    """A small U: stride down, nearest up, added and concatenated; leaky and smooth activations."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Conv2d(2, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.dilated = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.Upsample(scale_factor=2)
        self.leaky = nn.LeakyReLU(0.1)
        self.unshuffle = nn.PixelUnshuffle(2)
        self.dec = nn.Conv2d(8, 4, 3, padding="same")
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.enc(x))
        y = self.leaky(self.down(x))
        y = y - torch.tanh(self.norm(self.dilated(y)))
        x = self.dec(torch.cat([x, self.up(y)], 1))
        return self.head(self.unshuffle(F.hardswish(x)))
