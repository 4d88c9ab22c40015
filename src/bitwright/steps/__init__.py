# SPDX-License-Identifier: Apache-2.0
"""The steps of a build: thin glue between the parts, each with a typed result."""

from __future__ import annotations

from bitwright.steps.pipeline import STEP_NAMES, make_steps
from bitwright.steps.workspace import Workspace

__all__ = ["STEP_NAMES", "Workspace", "make_steps"]
