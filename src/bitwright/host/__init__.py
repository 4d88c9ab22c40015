# SPDX-License-Identifier: Apache-2.0
"""Talking to a board: the serial protocol, a session over it, and what a design says of itself."""

from __future__ import annotations

from bitwright.host.description import Description, read_description
from bitwright.host.link import Answer, Link
from bitwright.host.serial_line import SerialLine, serial_ports
from bitwright.host.statistics import Statistics

__all__ = [
    "Answer",
    "Description",
    "Link",
    "SerialLine",
    "Statistics",
    "read_description",
    "serial_ports",
]
