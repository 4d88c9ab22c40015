# SPDX-License-Identifier: Apache-2.0
"""The names of the zoo, and what a recipe says about its model. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bitwright.base.plugins import load_attribute, plugged

#: Endings of files that hold a whole model.
MODEL_FILES = (".prototxt", ".h5", ".hdf5", ".keras", ".safetensors", ".onnx")
#: Endings of files with weights alone; which model they belong to has to be said.
WEIGHT_FILES = (".caffemodel", ".pt", ".pth")
#: A quantized model, its weights as codes.
PACKED = ".bwq"
#: What models are written as, with the endings of each.
MODEL_FORMATS = {
    "caffe": (".prototxt",),
    "keras": (".h5", ".hdf5"),
    "safetensors": (".safetensors",),
}
#: What ``weights`` says for the checkpoint that comes with the package.
PRETRAINED: Literal["pretrained"] = "pretrained"


class ModelSpec(BaseModel):
    """Which model to build.

    Attributes:
        name: one of ``list_models()``, ``package.module:factory`` for the user's own, or a file
            of another framework (`MODEL_FILES`).
        options: keyword arguments for the factory, such as ``widths: [64, 64]``; for a file
            ``output`` and ``ignore_extra``.
        weights: a file of trained weights (``.safetensors``, ``.pt``, ``.h5``, ``.caffemodel``, ..)
            to start from, or ``pretrained``: those that come with the package for this model and
            data set (`models.pretrained`); beside a ``.prototxt`` its ``.caffemodel`` is the
            default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    weights: Literal["pretrained"] | Path | None = None

    @model_validator(mode="after")
    def _has_weights_of_its_own(self) -> ModelSpec:
        if self.is_file and self.is_pretrained:
            raise ValueError("a model from a file brings its weights: leave `weights` out")
        return self

    @property
    def is_pretrained(self) -> bool:
        """Whether the weights are those that come with the package."""
        return self.weights == PRETRAINED

    @property
    def is_file(self) -> bool:
        """Whether the name is that of a file of another framework."""
        return self.name.lower().endswith(MODEL_FILES)

    @property
    def is_own(self) -> bool:
        """Whether the name points at the user's own code."""
        return ":" in self.name and not self.is_file

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the user's that the model is read from."""
        given = self.weights if isinstance(self.weights, Path) else None
        if not self.is_file:
            return () if given is None else (given,)
        path = Path(self.name)
        beside = path.with_suffix(".caffemodel") if path.suffix.lower() == ".prototxt" else None
        weights = given or beside
        return (path,) if weights is None else (path, weights)


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``bitwright list models``.

    Attributes:
        name: what a recipe writes.
        summary: what it is, with its source.
        factory: ``module:function`` in ``bitwright.models``, or of a plug-in with its package.
        options: fixed options of this name.
        image: (H, W, C) that it is usually given; of a network of signals (L, C).
    """

    name: str
    summary: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    image: tuple[int, ...] = (32, 32, 3)


_FINN = "FINN, Umuroglu et al. 2017, section 5"
_HE = "He et al. 2016"
_HOWARD = "Howard et al. 2017"
_HUANG = "Huang et al. 2017"
_KRIZHEVSKY = "Krizhevsky 2014"
_SZEGEDY = "Szegedy et al. 2015"
_IANDOLA = "Iandola et al. 2016"
_ZHANG = "Zhang et al. 2020"
_RESNET32 = {"blocks": (5, 5, 5)}
_R18 = {"blocks": (2, 2, 2, 2), "widths": (64, 128, 256, 512)}
_DENSENET = "densenet:densenet"
_DENSENET_BLOCKS = {
    21: (1, 2, 3, 2),
    37: (2, 4, 6, 4),
    63: (3, 6, 12, 8),
    105: (4, 9, 16, 21),
    121: (6, 12, 24, 16),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
    264: (6, 12, 64, 48),
}
_DIGITS, _MNIST, _IMAGENET = (8, 8, 1), (28, 28, 1), (224, 224, 3)
_SHAPES = (32, 32, 1)


def _perceptron(name: str, width: int, also: str = "") -> ModelInfo:
    """Two hidden layers of one width, with biases and without batch norm."""
    summary = f"in-{width}-{width}-out, biases, no batch norm{also}"
    options = {"widths": (width, width), "batch_norm": False}
    return ModelInfo(name, summary, "plain:mlp", options, _MNIST)


MODELS = (
    ModelInfo("mlp", "perceptron; options: widths, batch_norm", "plain:mlp", image=_MNIST),
    *(
        ModelInfo(name, f"in-{w}-{w}-{w}-out ({_FINN})", "plain:mlp", {"widths": (w, w, w)}, _MNIST)
        for name, w in (("tfc", 64), ("sfc", 256), ("lfc", 1024))
    ),
    *(_perceptron(f"dnn{width}", width) for width in (30, 300, 800, 1200)),
    _perceptron("kl_mlp_student", 300, "; as dnn300"),
    _perceptron("kl_mlp_teacher", 1200, "; as dnn1200"),
    ModelInfo(
        "signal_cnn",
        "convolutions along time, for signals; options: widths, kernel, stride",
        "plain:signal_cnn",
        image=(512, 1),
    ),
    ModelInfo(
        "digits_cnn",
        "two 3 x 3 convolutions for 8 x 8 images",
        "plain:plain_cnn",
        {"widths": (8, 16)},
        _DIGITS,
    ),
    ModelInfo(
        "lenet",
        "LeNet-5-like, two 5 x 5 convolutions (LeCun et al. 1998)",
        "plain:lenet",
        image=_MNIST,
    ),
    ModelInfo(
        "mnist_cnn",
        "three 3 x 3 convolutions for 28 x 28 images",
        "plain:plain_cnn",
        {"widths": (16, 32, 32)},
        _MNIST,
    ),
    ModelInfo(
        "cifar_cnn",
        "four 3 x 3 convolutions for 32 x 32 images",
        "plain:plain_cnn",
        {"widths": (32, 64, 128, 256)},
    ),
    ModelInfo("cnv", f"VGG-like, 64-64-128-128-256-256-512-512 ({_FINN})", "plain:cnv"),
    ModelInfo(
        "alexnet",
        f"AlexNet for 32 x 32 images, no batch norm; options: width ({_KRIZHEVSKY})",
        "alexnet:alexnet",
    ),
    ModelInfo(
        "alexnet_imagenet",
        f"AlexNet, 61.1 M parameters, dropout; options: width, dropout ({_KRIZHEVSKY})",
        "alexnet:alexnet",
        {"form": "imagenet", "dropout": 0.5},
        _IMAGENET,
    ),
    ModelInfo(
        "googlenet",
        f"GoogLeNet for 32 x 32 images; options: width, tower ({_SZEGEDY})",
        "googlenet:googlenet",
    ),
    ModelInfo(
        "googlenet_imagenet",
        f"GoogLeNet with batch norm, one classifier; options: width, tower ({_SZEGEDY})",
        "googlenet:googlenet",
        {"stem": "imagenet", "tower": "5x5", "dropout": 0.4},
        _IMAGENET,
    ),
    ModelInfo(
        "squeezenet",
        f"SqueezeNet 1.1 for 32 x 32 images, no batch norm; options: width ({_IANDOLA})",
        "squeezenet:squeezenet",
    ),
    ModelInfo(
        "squeezenet_imagenet",
        f"SqueezeNet, 1.2 M parameters, dropout; options: form (1.0, 1.1), width ({_IANDOLA})",
        "squeezenet:squeezenet",
        {"form": "1.0", "dropout": 0.5},
        _IMAGENET,
    ),
    ModelInfo("resnet20", f"ResNet-20 for 32 x 32 images ({_HE})", "resnet:resnet"),
    ModelInfo("resnet32", f"ResNet-32 for 32 x 32 images ({_HE})", "resnet:resnet", _RESNET32),
    ModelInfo("resnet18", "ResNet-18 with a 3 x 3 stem, for 32 x 32 images", "resnet:resnet", _R18),
    ModelInfo(
        "resnet18_imagenet",
        f"ResNet-18 with the 7 x 7 stem ({_HE})",
        "resnet:resnet",
        {**_R18, "stem": "imagenet"},
        _IMAGENET,
    ),
    ModelInfo(
        "mobilenet",
        f"MobileNet v1; options: width ({_HOWARD})",
        "mobilenet:mobilenet",
        image=_IMAGENET,
    ),
    ModelInfo(
        "mobilenet_cifar",
        "MobileNet v1 that starts with stride 1, for 32 x 32 images; options: width",
        "mobilenet:mobilenet",
        {"stem_stride": 1},
    ),
    ModelInfo("densenet", f"any DenseNet; options: blocks, growth, form ({_HUANG})", _DENSENET),
    *(
        ModelInfo(
            f"densenet{depth}",
            f"DenseNet-{depth} for 32 x 32 images; options: form, stem",
            _DENSENET,
            {"blocks": blocks, "transition_activation": False},
        )
        for depth, blocks in _DENSENET_BLOCKS.items()
    ),
    ModelInfo(
        "box_cnn",
        "a small detector: 3 x 3 convolutions and a grid of boxes; options: widths",
        "dense:box_cnn",
        image=_SHAPES,
    ),
    ModelInfo(
        "unet",
        "a small U-Net: maps as large as the image, one bypass; options: widths",
        "dense:unet",
        image=_SHAPES,
    ),
    ModelInfo(
        "skynet",
        f"SkyNet, a detector; H and W multiples of 8 ({_ZHANG})",
        "skynet:skynet",
        image=(160, 320, 3),
    ),
)


def list_models() -> tuple[ModelInfo, ...]:
    """The models that ``build_model`` knows by name: our own and those of plug-ins."""
    return (*MODELS, *(load_attribute(place) for place in plugged("models").values()))
