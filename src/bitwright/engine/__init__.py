# SPDX-License-Identifier: Apache-2.0
"""The programmed engine: instructions, emulator, compiler, checker and timing of one circuit that
runs every network.
"""

from bitwright.engine.config import ENGINES, Constants, EngineConfig

__all__ = ["ENGINES", "Constants", "EngineConfig"]
