# SPDX-License-Identifier: Apache-2.0
"""The names of the zoo, and what a recipe says about its model. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ModelSpec(BaseModel):
    """Which model to build.

    Attributes:
        name: one of ``list_models()``, or ``package.module:factory`` for the user's own.
        options: keyword arguments for the factory, such as ``widths: [64, 64]``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether the name points at the user's own code."""
        return ":" in self.name


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``bitwright list models``.

    Attributes:
        name: what a recipe writes.
        summary: what it is, with its source.
        factory: the function in ``models.zoo``.
        options: fixed options of this name.
    """

    name: str
    summary: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)


_FINN = "FINN, Umuroglu et al. 2017, section 5"
MODELS = (
    ModelInfo("mlp", "perceptron with batch norm; options: widths", "mlp"),
    ModelInfo("tfc", f"in-64-64-64-out ({_FINN})", "mlp", {"widths": (64, 64, 64)}),
    ModelInfo("sfc", f"in-256-256-256-out ({_FINN})", "mlp", {"widths": (256, 256, 256)}),
    ModelInfo("lfc", f"in-1024-1024-1024-out ({_FINN})", "mlp", {"widths": (1024, 1024, 1024)}),
    ModelInfo(
        "digits_cnn", "two 3 x 3 convolutions for 8 x 8 images", "plain_cnn", {"widths": (8, 16)}
    ),
    ModelInfo("lenet", "LeNet-5-like, two 5 x 5 convolutions (LeCun et al. 1998)", "lenet"),
    ModelInfo(
        "mnist_cnn",
        "three 3 x 3 convolutions for 28 x 28 images",
        "plain_cnn",
        {"widths": (16, 32, 32)},
    ),
    ModelInfo("cnv", f"VGG-like, 64-64-128-128-256-256-512-512 ({_FINN})", "cnv"),
)


def list_models() -> tuple[ModelInfo, ...]:
    """The models that ``build_model`` knows by name."""
    return MODELS
