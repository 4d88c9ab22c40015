# SPDX-License-Identifier: Apache-2.0
"""The integer artefact: packed parameters, golden vectors, and replays in numpy and in C99."""

from __future__ import annotations

from bitwright.interop.artifact.write import SCHEMA, ArtifactReport, export_artifact

__all__ = ["SCHEMA", "ArtifactReport", "export_artifact"]
