# SPDX-License-Identifier: Apache-2.0
"""The steps of a build: thin glue between the parts, each with a typed result."""

from __future__ import annotations

from bitwright.pipeline.steps.order import STEP_NAMES, make_steps
from bitwright.pipeline.steps.workspace import Workspace

__all__ = ["STEP_NAMES", "Workspace", "make_steps"]
