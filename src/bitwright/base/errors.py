# SPDX-License-Identifier: Apache-2.0
"""The exception tree. Every error says what is wrong, where, and what to do next.

The command line prints ``message``, ``where`` and ``hint`` and exits with ``exit_code``; a
traceback is shown only for errors outside this tree, which are bugs.
"""

from __future__ import annotations

_MOST = 4000  # characters of a part of an error: what it quotes may come from a file, of any length


def _shortened(text: str) -> str:
    """The text, or what stands at its beginning and end."""
    if len(text) <= _MOST:
        return text
    return f"{text[: _MOST // 2]} ... ({len(text)} characters) ... {text[-_MOST // 4 :]}"


class BitwrightError(Exception):
    """Base of all errors that a user can cause or mend; none is longer than a screen or two.

    Args:
        message: what was expected and what came instead.
        where: the file, field, layer, node or line concerned.
        hint: what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(_shortened(message))
        self.message = _shortened(message)
        self.where = None if where is None else _shortened(where)
        self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return text if self.hint is None else f"{text}\n  -> {self.hint}"


class RecipeError(BitwrightError):
    """A recipe, policy or folding file is malformed or asks for the impossible."""

    exit_code = 2


class ModelError(BitwrightError):
    """A model cannot be traced, converted or lowered."""

    exit_code = 3


class NoHardware(ModelError):
    """A node of a graph has no hardware, or no mapping.

    Args:
        node: its name.
        edge: what it reads, where that is the reason and not the node.
    """

    def __init__(
        self,
        message: str,
        *,
        node: str,
        edge: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.node, self.edge = node, edge


class DataError(BitwrightError):
    """A data set or checkpoint file is missing, corrupt or truncated."""

    exit_code = 4


class GraphError(BitwrightError):
    """A graph breaks a rule of its dialect, or two executions of it disagree."""

    exit_code = 5


class ToolError(BitwrightError):
    """An external tool is missing, failed or ran out of time."""

    exit_code = 6


class TargetError(BitwrightError):
    """A design does not fit its target, or the target is unknown."""

    exit_code = 7


class RunError(BitwrightError):
    """A run directory is locked, broken, or was written by another version."""

    exit_code = 8


class FormatError(BitwrightError):
    """A number format is unknown or its parameters are out of range."""

    exit_code = 9


class MismatchError(BitwrightError):
    """Two levels of the pipeline gave different integers: always a bug in Bitwright."""

    exit_code = 10


class ProgramError(BitwrightError):
    """A program of the engine is damaged, breaks a rule of its instructions, or is unsafe."""

    exit_code = 11
