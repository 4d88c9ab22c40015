# SPDX-License-Identifier: Apache-2.0
"""The command line. Heavy imports stand inside functions: ``bitwright --help`` must be instant."""

from __future__ import annotations

from bitwright.cli.entry import main

__all__ = ["main"]
