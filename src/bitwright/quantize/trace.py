# SPDX-License-Identifier: Apache-2.0
"""The user's module -> torch.fx graph, with the user's source line at every node."""

from __future__ import annotations

import copy
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize.joins import LowerSignal, RaiseSignal, rearrange

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n\s+(?P<text>[^\n]*)')
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


#: Layers of the user's own that are kept whole; `quantize.register_layer` adds to it.
WHOLE: set[type[nn.Module]] = set()
_OURS_WHOLE = (RaiseSignal, LowerSignal)


class _Tracer(fx.Tracer):
    """Leaves are the layers of ``torch.nn`` and `WHOLE`; everything else is traced into."""

    def __init__(self) -> None:
        # A graph that was made simple before (`canonicalize`) holds this function.
        super().__init__(autowrap_functions=(rearrange,))
        self.record_stack_traces = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in (*WHOLE, *_OURS_WHOLE) or bool(
            super().is_leaf_module(m, module_qualified_name)
        )

    def to_bool(self, obj: fx.Proxy) -> bool:
        """An ``assert`` about sizes holds: the example input and freezing check the shapes."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and not _is_users(frame.f_code.co_filename):
            frame = frame.f_back
        line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if line.strip().startswith("assert"):
            return True
        return bool(super().to_bool(obj))


class SignalModel(fx.GraphModule):
    """A network of signals whose layers are those of images of one row (`signals.raised`)."""


def trace(model: nn.Module) -> fx.Graph:
    """The graph of a module's ``forward``.

    Raises:
        ModelError: forward cannot be traced (it branches on data, say); with the user's line.
    """
    if isinstance(model, SignalModel):
        return copy.deepcopy(model.graph)  # with the user's lines
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
    # Whatever the user's forward raises while it runs on symbols is reported, with its line.
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [f for f in frames if _is_users(f.filename)]
        where = f"{users[-1].filename}:{users[-1].lineno}" if users else type(model).__name__
        text = f" ({users[-1].line})" if users and users[-1].line else ""
        raise ModelError(
            f"the model cannot be traced{text}: {error}",
            where=where,
            hint="forward must be one fixed graph: no if or loop over tensor values, no print of "
            "them, no numpy; branch on plain Python values set in __init__ instead",
        ) from error
    _follow_changes(graph, dict(model.named_modules()))
    return graph


def _follow_changes(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
    """Whoever reads a tensor after an operation in place reads that operation's result."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not (node.args and isinstance(node.args[0], fx.Node) and _in_place(node, modules)):
            continue
        changed = node.args[0]
        for user in list(changed.users):
            if place[user] > place[node]:
                user.replace_input_with(changed, node)


def _in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return getattr(modules[str(node.target)], "inplace", False) is True
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function":
        return False
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # a builtin
        return str(getattr(node.target, "__name__", "")).endswith("_")
    return given.get("inplace", False) is True


def user_line(node: fx.Node) -> str | None:
    """``file:line: text`` of the innermost line of the user's own code that made this node."""
    found = [match for match in _FRAME.finditer(node.stack_trace or "") if _is_users(match["file"])]
    if not found:
        return None
    return f"{found[-1]['file']}:{found[-1]['line']}: {found[-1]['text'].strip()}"


def _is_users(path: str) -> bool:
    return not path.startswith((_TORCH, _OURS, "<"))
