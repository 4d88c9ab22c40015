# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime, which by itself warns on standard error and sends telemetry: neither, here."""

from __future__ import annotations

import os
from typing import Any

_ERRORS = 3


def onnx_runtime() -> Any:
    """The module ``onnxruntime``, quiet; to be called before any package that uses it.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when its library is loaded
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(_ERRORS)
    return onnxruntime
