# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own, which need not import torch again.

Starting a program that trains costs four seconds of imports. Here a server imports once what all of
them need, and forks itself for each; else they run as `python FILE` and `python -c CODE` do.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_IMPORTED = ("torch", "torch._dynamo", "sklearn.datasets", "bitwright.cli.app", "bitwright.train")
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(list(_IMPORTED))


class Program:
    """A running program.

    Args:
        source: a file, or code.
        arguments: of the program.
        folder: where its output is kept (``stdout``, ``stderr``).
        cwd: its working directory.
        env: changes of our environment.
    """

    def __init__(
        self,
        source: Path | str,
        arguments: Sequence[object],
        folder: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = folder / "stdout", folder / "stderr"
        words = [str(word) for word in arguments]
        values = {**os.environ, **(env or {})}
        self._process = _server.Process(
            target=_run, args=(source, words, self._files, cwd or Path.cwd(), values)
        )
        self._process.start()
        # Before multiprocessing waits for it: a test that has failed waits for nothing.
        atexit.register(self._process.kill)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    @property
    def output(self) -> str:
        """What it has written to standard output."""
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        """What it has written to standard error."""
        return self._files[1].read_text()

    def wait(self, timeout_s: float = 300) -> int:
        """Its exit status when it has ended; the negative number of the signal that ended it."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"still running after {timeout_s:g} s: {self.errors}")
        return self._process.exitcode

    def stop(self, number: signal.Signals) -> int:
        """Send it a signal; its exit status."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        return self.wait(60)

    def wait_until(self, done: Path, lines: int = 0, timeout_s: float = 300) -> None:
        """Wait while it runs until a file is there, with so many lines."""
        deadline = time.monotonic() + timeout_s
        while not done.exists() or len(done.read_text("latin-1").splitlines()) < lines:
            assert self.running, self.errors
            assert time.monotonic() < deadline, f"{done} did not come: {self.errors}"
            time.sleep(0.01)


def run_program(source: Path | str, folder: Path, *arguments: object, **env: str) -> str:
    """Run a program in a folder to its end; what it wrote to standard output."""
    program = Program(source, arguments, folder / ".output", cwd=folder, env=env)
    assert program.wait(500) == 0, program.errors
    return program.output


def _run(
    source: Path | str, words: list[str], files: tuple[Path, Path], cwd: Path, env: dict[str, str]
) -> None:
    for number, file in enumerate(files, start=1):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    import torch

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if threads := env.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))  # the variable itself was read before the fork
    if isinstance(source, Path):
        sys.argv = [str(source), *words]
        sys.path.insert(0, str(source.parent))
        runpy.run_path(str(source), run_name="__main__")
    else:
        sys.argv = ["-c", *words]
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
