# SPDX-License-Identifier: Apache-2.0
"""``python -m bitwright.engine`` writes the page of the instructions and the RTL's decoders."""

from pathlib import Path

from bitwright.engine.reference import files

if __name__ == "__main__":
    for path, text in files(Path(__file__).resolve().parents[3]).items():
        path.write_text(text, encoding="utf-8")
