# SPDX-License-Identifier: Apache-2.0
"""``python -m bitwright.hw > docs/dialects.md`` writes the reference of both dialects."""

from bitwright.hw.dialect import HARDWARE
from bitwright.ir import INTEGER

if __name__ == "__main__":
    print(INTEGER.documentation() + "\n" + HARDWARE.documentation(), end="")
