# SPDX-License-Identifier: Apache-2.0
"""``python -m bitwright``: the command line where its script is not on the path."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # What lies where the user stands is no library: ``-m`` has put that folder first of all.
    if not sys.flags.safe_path:
        with suppress(OSError):
            stands, ours = os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            if sys.path[:1] == [stands] and stands != ours:
                del sys.path[0]

    from bitwright.cli import main

    main()
