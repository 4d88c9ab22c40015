# SPDX-License-Identifier: Apache-2.0
"""Bitstreams onto boards, by the programs that people use for them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.regular import open_regular
from bitwright.base.tools.finder import locate, run_tool
from bitwright.build.target import Board

_TIMEOUT_S = 180.0


def load_bitstream(
    bitstream: Path, board: Board, *, loader: str | None = None, timeout_s: float = _TIMEOUT_S
) -> list[str]:
    """Load a bitstream into a board's volatile memory: it is gone when the power is.

    Args:
        loader: which of the board's loaders; None: the first that is installed.

    Returns:
        The command that was run.

    Raises:
        ToolError: no loader is installed, or it failed or ran out of time.
        DataError: the bitstream cannot be read.
    """
    if not board.loaders:
        raise ToolError(
            f"no loader is known for {board.description}", where=board.name,
            hint="add [loaders] to the board file",
        )  # fmt: skip
    names = [loader] if loader else list(board.loaders)
    if loader is not None and loader not in board.loaders:
        raise ToolError(
            f"is no loader of {board.name}; these are: {', '.join(board.loaders)}", where=loader
        )
    found = next((tool for name in names if (tool := locate(name)) is not None), None)
    if found is None:
        raise ToolError(
            f"none of {', '.join(names)} is installed; one is needed to load a bitstream",
            where=board.name,
            hint="`bitwright doctor` says how to install them",
        )
    try:
        open_regular(bitstream).close()
    except OSError as error:
        raise ToolError(
            f"cannot be read: {error.strerror or error}", where=str(bitstream)
        ) from error
    arguments = [*board.loaders[found.name], str(bitstream.resolve())]
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        run_tool(found, arguments, cwd=Path(folder), log=Path(folder, "log"), timeout=timeout_s)
    return [*found.command, *arguments]
