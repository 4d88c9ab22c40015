# SPDX-License-Identifier: Apache-2.0
"""Lesson 4: what goes wrong most often, and what is said then: before any work starts."""

from torch import Tensor, nn

from bitwright.base.errors import BitwrightError
from bitwright.pipeline.api import estimate_recipe
from bitwright.pipeline.recipe import load_recipe
from bitwright.quantize import Policy, apply


class WithLayerNorm(nn.Module):
    """A normalisation that has no few-bit form."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3)
        self.norm = nn.LayerNorm((4, 6, 6))
        self.head = nn.Linear(144, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.features(images)).flatten(1))


def expect_error(title: str, action: object) -> None:
    """Show the error of a call that must fail."""
    try:
        action()  # type: ignore[operator]
    except BitwrightError as error:
        print(f"--- {title} (exit code {error.exit_code})\n{error}\n")
    else:
        raise AssertionError(f"{title}: no error")


expect_error("a misspelt key", lambda: load_recipe("digits", ["train.float.epoch=3"]))
expect_error("an impossible value", lambda: load_recipe("digits", ["hardware.fill=2"]))
expect_error("an unknown format", lambda: load_recipe("digits", ["quant.weight=int17"]))
expect_error("a layer without few bits", lambda: apply(WithLayerNorm(), Policy.uniform(), "train"))
expect_error(
    "a budget that is too small",
    lambda: estimate_recipe(
        load_recipe("digits", ["hardware={target: ecp5-25k, budget: {lut: 200}}"])
    ),
)
expect_error(
    "a rate out of reach",
    lambda: estimate_recipe(load_recipe("digits", ["hardware={target_fps: 100_000_000}"])),
)
