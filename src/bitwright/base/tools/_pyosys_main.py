# SPDX-License-Identifier: Apache-2.0
"""Native Yosys from the ``pyosys`` package behind the two options of the ``yosys`` program used
here.

Run as a file in a Python of its own: ``-s SCRIPT`` runs a script, ``-V`` prints the version.
"""

from __future__ import annotations

import sys
from importlib.metadata import version


def main(argv: list[str]) -> int:
    """Run Yosys; a Yosys error ends the process with status 1 from inside the library."""
    if argv == ["-V"]:
        print(f"Yosys {version('pyosys')} (pyosys)")
        return 0
    if len(argv) != 2 or argv[0] != "-s":
        print("usage: _pyosys_main.py -s SCRIPT | -V", file=sys.stderr)
        return 2
    from pyosys import libyosys

    libyosys.run_pass(f"script {argv[1]}", libyosys.Design())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
