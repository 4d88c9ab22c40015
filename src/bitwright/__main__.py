# SPDX-License-Identifier: Apache-2.0
"""``python -m bitwright``: the command line where its script is not on the path."""

from bitwright.cli import main

if __name__ == "__main__":
    main()
