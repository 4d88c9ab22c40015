# SPDX-License-Identifier: Apache-2.0
"""A serial port as a `Line`, by pyserial (the extra ``board``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.tools.python import INTERPRETER

_HINT = f"{INTERPRETER} -m pip install 'bitwright[board]'"
_WRITE_S = 10.0


@dataclass(frozen=True)
class SerialPort:
    """A port of this machine.

    Attributes:
        name: to open it by.
        description: what is plugged in, as the system says.
        board: of which board it may be; empty where nothing says so.
    """

    name: str
    description: str
    board: str


class SerialLine:
    """An open port, raw: 8 data bits, no parity, one stop bit."""

    def __init__(self, port: Any) -> None:
        self._port = port

    @staticmethod
    def open(name: str, baud: float) -> SerialLine:
        """Open a port.

        Raises:
            ToolError: pyserial is not installed, or the port cannot be opened.
        """
        serial = _pyserial()
        try:
            port = serial.Serial(
                name, baudrate=round(baud), timeout=0, write_timeout=_WRITE_S, exclusive=True
            )
        except (serial.SerialException, ValueError, OSError) as error:
            raise ToolError(
                f"cannot be opened at {baud:.0f} baud: {error}",
                where=name,
                hint="`bitwright board list` shows the ports; your user may have to be in the "
                "group of the port (often dialout)",
            ) from error
        try:  # FTDI chips hold short answers back for 16 ms otherwise
            port.set_low_latency_mode(True)
        except (AttributeError, NotImplementedError, ValueError, OSError):
            pass  # not such a chip, or not this system
        return SerialLine(port)

    def write(self, data: bytes) -> None:
        """Send bytes, all of them.

        Raises:
            ToolError: the port is gone or takes nothing for seconds.
        """
        try:
            self._port.write(data)
        except OSError as error:  # SerialException is one
            raise self._gone(error) from error

    def read(self, timeout: float) -> bytes:
        """Bytes that have come; waits so many seconds at most for the first one.

        Raises:
            ToolError: the port is gone.
        """
        try:
            waiting = self._port.in_waiting
            if not waiting:
                self._port.timeout = timeout
                first = self._port.read(1)
                waiting = self._port.in_waiting
                self._port.timeout = 0
                return bytes(first + self._port.read(waiting))
            return bytes(self._port.read(waiting))
        except OSError as error:
            raise self._gone(error) from error

    def close(self) -> None:
        """Give the port back."""
        self._port.close()

    def _gone(self, error: OSError) -> ToolError:
        return ToolError(f"the port is gone: {error}", where=str(self._port.name))


def serial_ports(usb: dict[tuple[int, int], str]) -> list[SerialPort]:
    """The serial ports of this machine.

    Args:
        usb: vendor and product number -> board.

    Raises:
        ToolError: pyserial is not installed.
    """
    _pyserial()
    from serial.tools import list_ports

    return [
        SerialPort(port.device, port.description or "", usb.get((port.vid or 0, port.pid or 0), ""))
        for port in sorted(list_ports.comports())
    ]


def _pyserial() -> Any:
    try:
        import serial
    except ImportError as error:
        raise ToolError(
            "was not found; it is needed to talk to boards",
            where="pyserial",
            hint=f"install it with: {_HINT}",
        ) from error
    return serial
