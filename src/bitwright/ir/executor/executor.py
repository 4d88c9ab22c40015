# SPDX-License-Identifier: Apache-2.0
"""The fast executor: same integers as the interpreter, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError, ToolError
from bitwright.base.processors import available_threads
from bitwright.ir.executor.compiler import Library, native_library, native_status
from bitwright.ir.executor.layout import Feature, Op
from bitwright.ir.executor.numpy_backend import make_numpy_plan
from bitwright.ir.executor.plan import make_plan, supported
from bitwright.ir.executor.runner import FEED_KINDS, NativeRunner
from bitwright.ir.graph import Graph
from bitwright.ir.levels import check_levels
from bitwright.ir.node import IntArray

Array = NDArray[np.generic]
Backend = Literal["auto", "native", "numpy"]


class Executor:
    """Executes an integer graph exactly: every output equals (==) the interpreter's.

    Args:
        graph: a verified graph of the integer dialect.
        threads: at most so many; by default every core that the process may use.
        backend: "native" (C, compiled once per machine), "numpy", or "auto": native where it works.
        library: kernels to use instead of this machine's (tests).
        only: product kernels to consider (tests and benchmarks).

    Raises:
        ToolError: backend "native" was asked for and is not available.
        GraphError: the graph is not of the integer dialect, or has an operation unknown here.

    A call may come from any thread; calls of several threads run at the same time. To give each
    core a call of its own, make it with ``threads=1``.
    """

    def __init__(
        self,
        graph: Graph,
        threads: int | None = None,
        backend: Backend = "auto",
        *,
        library: Library | None = None,
        only: frozenset[Op] | None = None,
    ) -> None:
        if graph.dialect.name != "integer":
            raise GraphError(
                f"expected a graph of the dialect integer, got {graph.dialect.name}",
                where=graph.name,
            )
        if threads is not None and threads < 1:
            raise GraphError(f"threads must be at least 1, got {threads}", where=graph.name)
        self.graph = graph
        self.threads = threads or available_threads()
        self._native = self._make_native(backend, library, only)
        self._numpy = make_numpy_plan(graph) if self._native is None else None

    def _make_native(
        self, backend: Backend, library: Library | None, only: frozenset[Op] | None
    ) -> NativeRunner | None:
        if backend not in ("auto", "native", "numpy"):
            raise GraphError(f"backend must be auto, native or numpy, got {backend!r}")
        if backend == "numpy":
            return None
        found = library or native_library()
        reason = native_status().note if found is None else supported(self.graph)
        if found is None or reason is not None:
            if backend == "native":
                raise ToolError(
                    f"the native executor is not available: {reason}",
                    where=self.graph.name,
                    hint="use backend='auto' to fall back on numpy",
                )
            return None
        if not found.has(Feature.THREADS):
            self.threads = 1
        return NativeRunner(self.graph, make_plan(self.graph, found, only), found, self.threads)

    @property
    def backend(self) -> str:
        """What runs: native or numpy."""
        return "numpy" if self._native is None else "native"

    @property
    def kernels(self) -> dict[str, str]:
        """Kernel of every conv and dense node, for reports."""
        if self._native is not None:
            return dict(self._native.plan.kernels)
        return {} if self._numpy is None else dict(self._numpy.kernels)

    def __call__(self, *images: Array) -> dict[str, IntArray]:
        """`run` with the graph's inputs in order."""
        if len(images) != len(self.graph.inputs):
            raise GraphError(
                f"expected {len(self.graph.inputs)} inputs, got {len(images)}",
                where=self.graph.name,
            )
        return self.run(dict(zip(self.graph.inputs, images, strict=True)))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, IntArray]:
        """Execute on a batch.

        Args:
            feeds: input name -> integer levels ``(N, *shape)``.

        Returns:
            output name -> int64 levels ``(N, *shape)``.

        Raises:
            GraphError: an input is missing, has a wrong shape or type, or leaves its interval.
        """
        absent = [edge for edge in self.graph.inputs if edge not in feeds]
        if absent:
            raise GraphError(f"no value for inputs {absent}", where=self.graph.name)
        arrays = [self._checked(edge, feeds[edge]) for edge in self.graph.inputs]
        if len(arrays) > 1 and len({array.shape[0] for array in arrays}) != 1:
            raise GraphError(
                f"inputs have different batch sizes {[a.shape[0] for a in arrays]}",
                where=self.graph.name,
            )
        if self._native is not None:
            return self._native(arrays)
        assert self._numpy is not None
        checked = {
            edge: check_levels(edge, self.graph.types[edge], array.astype(np.int64))
            for edge, array in zip(self.graph.inputs, arrays, strict=True)
        }
        return self._numpy.run(dict(checked))

    def _checked(self, edge: str, levels: Array) -> Array:
        """A contiguous array of a type that the kernels read; shape checked, values not yet."""
        array = np.asarray(levels)
        expected = self.graph.types[edge].shape
        if array.dtype.str not in FEED_KINDS:
            if not np.issubdtype(array.dtype, np.integer):
                raise GraphError(f"expected integers, got {array.dtype}", where=edge)
            if array.dtype == np.uint64 and array.size and array.max() >= 1 << 63:
                raise GraphError(f"level {array.max()} leaves the interval", where=edge)
            array = array.astype(np.int64)
        if array.shape[1:] != expected or array.ndim == 0:
            raise GraphError(
                f"expected shape (N, {', '.join(map(str, expected))}), got {array.shape}",
                where=edge,
            )
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
