# SPDX-License-Identifier: Apache-2.0
"""Any OpenCL device: found, opened, its programs built, with a readable reason for failures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ToolError

_HINT = (
    "install a driver of your device, or a CPU one (Debian: pocl-opencl-icd), and "
    "`pip install bitwright[opencl]`; without, the kernels of the CPU do the same"
)


def _opencl() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise ToolError("pyopencl is not installed", where="OpenCL", hint=_HINT) from error
    return pyopencl


def device_names() -> tuple[str, ...]:
    """``platform: device`` of every OpenCL device here; none is an empty tuple.

    Raises:
        ToolError: pyopencl is not installed.
    """
    return tuple(name for name, _ in _devices())


def _devices() -> list[tuple[str, Any]]:
    cl = _opencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return []
    found = []
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except cl.Error:
            continue
        found += [(f"{platform.name}: {device.name}", device) for device in devices]
    return found


@cache
def source(name: str) -> str:
    """The text of one of our kernel files."""
    place = files("bitwright.papers.bnn_soc") / "opencl" / f"{name}.cl"
    return place.read_text(encoding="utf-8")


@dataclass
class Traffic:
    """Bytes that went to the device and came back, and seconds of kernels alone."""

    sent: int = 0
    received: int = 0
    kernel_s: float = 0.0
    launches: int = 0


@dataclass
class Device:
    """A device with a queue that measures time.

    Attributes:
        name: ``platform: device``.
        traffic: what has been moved and run so far.
    """

    name: str
    _context: Any
    _queue: Any
    traffic: Traffic = field(default_factory=Traffic)
    _kernels: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    @classmethod
    def open(cls, wanted: str = "") -> Device:
        """The first device whose name contains ``wanted``.

        Raises:
            ToolError: pyopencl or every platform is missing, or no device has such a name.
        """
        cl = _opencl()
        found = _devices()
        if not found:
            raise ToolError("no OpenCL device here", where="OpenCL", hint=_HINT)
        for name, device in found:
            if wanted.lower() in name.lower():
                with _told(name):
                    context = cl.Context([device])
                    profiling = cl.command_queue_properties.PROFILING_ENABLE
                    return cls(name, context, cl.CommandQueue(context, properties=profiling))
        names = "; ".join(name for name, _ in found)
        raise ToolError(f"no device {wanted!r}", where="OpenCL", hint=f"devices: {names}")

    def kernel(self, file: str, name: str, options: str = "", text: str | None = None) -> Any:
        """A kernel of one of our files (or of ``text``), built once.

        Raises:
            ToolError: it does not build on this device; the message has the build's log.
        """
        key = (file, name, options)
        if key not in self._kernels:
            cl = _opencl()
            program = cl.Program(self._context, text if text is not None else source(file))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", cl.CompilerWarning)
                    self._kernels[key] = cl.Kernel(program.build(options=options.split()), name)
            except cl.Error as error:
                raise ToolError(
                    f"the kernel does not build: {error}",
                    where=f"{file}.cl on {self.name}",
                    hint="take another device, or the kernels of the CPU",
                ) from error
        return self._kernels[key]

    def upload(self, array: NDArray[Any]) -> Any:
        """A buffer with an array's bytes.

        Raises:
            ToolError: the device has not so much memory.
        """
        cl = _opencl()
        array = np.ascontiguousarray(array)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        with _told(self.name, f"{array.nbytes} bytes for it"):
            buffer = cl.Buffer(self._context, flags, hostbuf=array)
        self.traffic.sent += array.nbytes
        return buffer

    def empty(self, nbytes: int) -> Any:
        """A buffer without content; `ToolError` where there is no room."""
        cl = _opencl()
        with _told(self.name, f"{nbytes} bytes on it"):
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def download(self, buffer: Any, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        """The content of a buffer, behind all kernels started so far."""
        cl = _opencl()
        found = np.empty(shape, dtype=kind)
        with _told(self.name):
            cl.enqueue_copy(self._queue, found, buffer).wait()
        self.traffic.received += found.nbytes
        return found

    def run(
        self,
        kernel: Any,
        size: tuple[int, ...],
        *arguments: Any,
        group: tuple[int, ...] | None = None,
    ) -> None:
        """Run a kernel to its end; its own time is added to the traffic."""
        with _told(self.name):
            event = kernel(self._queue, size, group, *arguments)
            event.wait()
        self.traffic.kernel_s += (event.profile.end - event.profile.start) * 1e-9
        self.traffic.launches += 1


@contextmanager
def _told(name: str, what: str = "") -> Iterator[None]:
    """Errors of OpenCL as ours."""
    cl = _opencl()
    try:
        yield
    except cl.MemoryError as error:
        raise ToolError(
            f"no room for {what or 'a buffer'}: {error}",
            where=name,
            hint="fewer frames at a time, packed weights, or a device with more memory",
        ) from error
    except cl.Error as error:
        raise ToolError(f"OpenCL failed: {error}", where=name, hint=_HINT) from error
