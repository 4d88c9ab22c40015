# SPDX-License-Identifier: Apache-2.0
"""AlexNet in the form of Krizhevsky 2014 ("One weird trick for parallelizing convolutional neural
networks", one column), for ImageNet and for images as small as CIFAR's. No batch norm.

Convolutions begin as in the rest of the zoo. As PyTorch sets them by itself, what images in [0, 1]
do to the scores is 14 times smaller (standard deviation over images), and so are the first
gradients, nearly: without batch norm such a training stands still for a long time.
"""

from __future__ import annotations

from torch import nn

from bitwright.models.common import Shape, check_options, choice, initialise, scaled
from bitwright.models.plain import Stack

_WIDTHS = (64, 192, 384, 256, 256)
_HIDDEN = 4096
_FORMS = ("cifar", "imagenet")


def alexnet(
    num_classes: int,
    input_shape: Shape,
    *,
    form: str = "cifar",
    width: float = 1.0,
    dropout: float = 0.0,
    activation: str = "relu",
) -> nn.Sequential:
    """Five convolutions with biases, a max pool behind the first, second and last, the classifier.

    With 10 classes the CIFAR form has 2 472 266 parameters, with 1000 classes the ImageNet form
    61 100 840. The classifier reads whatever image is left of the given one: with 224 x 224 that is
    the 6 x 6 to which other implementations pool images of other sizes.

    Args:
        form: ``cifar``: first convolution padded by 5, pools of 2 x 2, one matrix; ``imagenet``:
            padded by 2, pools of 3 x 3, two hidden layers of 4096.
        width: the share of the channels to keep.
        dropout: share of values that training zeroes in front of each hidden layer.

    Raises:
        ModelError: an option makes no sense, or nothing is left of the image.
    """
    choice("alexnet", "form", form, _FORMS)
    check_options("alexnet", width=width, dropout=dropout)
    is_small = form == "cifar"
    pool = 2 if is_small else 3
    channels = [scaled(count, width) for count in _WIDTHS]
    stack = Stack("alexnet", input_shape, activation)
    stack.conv(channels[0], 11, 5 if is_small else 2, stride=4, norm=False)
    stack.pool(pool)
    stack.conv(channels[1], 5, 2, norm=False)
    stack.pool(pool)
    for count in channels[2:]:
        stack.conv(count, 3, 1, norm=False)
    stack.pool(pool)
    stack.flatten()
    for _ in range(0 if is_small else 2):
        stack.dropout(dropout)
        stack.dense(scaled(_HIDDEN, width), norm=False)
    model = stack.classify(num_classes)
    initialise(model)
    return model
