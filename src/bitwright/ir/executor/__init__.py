# SPDX-License-Identifier: Apache-2.0
"""The fast exact executor of integer graphs: C kernels where a compiler is found, else numpy."""

from bitwright.ir.executor.compiler import NativeStatus, native_status
from bitwright.ir.executor.executor import Executor
from bitwright.ir.executor.layout import Op

__all__ = ["Executor", "NativeStatus", "Op", "native_status"]
