# SPDX-License-Identifier: Apache-2.0
"""The cost model of the programmed engine: syntheses of several, and the fit of `engine.cost`.

    python benchmarks/engine_cost.py              # what is missing is synthesised; then the fit
    python benchmarks/engine_cost.py --only fit

Writes ``src/bitwright/engine/cost.json``. The table says for every engine what is predicted by a
fit to all, and by one to all the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.build.target import load_target
from bitwright.build.yosys import synthesise
from bitwright.engine.config import EngineConfig
from bitwright.engine.cost import FILE, parts
from bitwright.rtl.emit_engine import emit_engine

_TIMEOUT = 14_400.0
_OUT = Path(__file__).parents[1] / "src" / "bitwright" / "engine" / FILE
#: Configurations with their lanes in DSP blocks; the last two are the named ones.
POINTS: tuple[tuple[dict[str, int], int], ...] = (
    ({"pixels": 2, "feature_words": 1 << 10, "weight_rows": 64, "parameter_rows": 32}, 8),
    ({"pixels": 2, "feature_words": 1 << 10, "weight_rows": 64, "parameter_rows": 32}, 2),
    ({"pixels": 4, "feature_words": 1 << 12, "weight_rows": 256, "parameter_rows": 128}, 8),
    ({"pixels": 4, "feature_words": 1 << 12, "weight_rows": 256, "parameter_rows": 128}, 0),
    ({"pixels": 8, "feature_words": 1 << 13, "weight_rows": 256, "parameter_rows": 128}, 8),
    ({"pixels": 8, "feature_words": 1 << 13, "weight_rows": 256, "parameter_rows": 128}, 2),
    ({"pixels": 2, "feature_words": 1 << 14}, 8),
    ({}, 4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["fit"], default=None)
    given = parser.parse_args()
    table: dict[str, Any] = json.loads(_OUT.read_text()) if _OUT.exists() else {"points": []}
    known = [(point["engine"], point["dsps"]) for point in table["points"]]
    for engine, dsps in POINTS:
        if given.only is None and (engine, dsps) not in known:
            table["points"].append(_synthesised(engine, dsps))
            _OUT.write_text(json.dumps(table, indent=1) + "\n")
    fitted = {kind: _fit(table["points"], kind) for kind in ("lut", "ff")}
    table["cost"] = {kind: {k: round(v, 3) for k, v in fit.items()} for kind, fit in fitted.items()}
    _OUT.write_text(json.dumps(table, indent=1) + "\n")
    _show(table["points"])


def _synthesised(engine: dict[str, int], dsps: int) -> dict[str, Any]:
    config = EngineConfig(**engine)
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(config, Path(folder) / "rtl", dsps=dsps)
        made = synthesise(
            Path(folder) / "rtl", load_target("ecp5-85k"), Path(folder) / "out", timeout=_TIMEOUT
        )
    print(engine, dsps, made.resources, flush=True)
    return {"engine": engine, "dsps": dsps, "tool": made.tool, **made.resources.to_json()}


def _rows(points: list[dict[str, Any]]) -> tuple[list[str], np.ndarray]:
    counts = [parts(EngineConfig(**point["engine"]), point["dsps"]) for point in points]
    # What is the same everywhere cannot be told from the engine itself.
    names = [n for n in counts[0] if n == "engine" or len({c[n] for c in counts}) > 1]
    return names, np.array([[count[name] for name in names] for count in counts])


def _fit(points: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Least squares of relative errors."""
    names, rows = _rows(points)
    wanted = np.array([float(point[kind]) for point in points])
    found, *_ = np.linalg.lstsq(rows / wanted[:, None], np.ones(len(points)), rcond=None)
    return dict(zip(names, map(float, found), strict=True))


def _show(points: list[dict[str, Any]]) -> None:
    print("| engine | lanes in DSP | LUT | fit to all | fit to the others | FF | fit | others |")
    print("|---|---|---|---|---|---|---|---|")
    for n, point in enumerate(points):
        config = EngineConfig(**point["engine"])
        cells = []
        for kind in ("lut", "ff"):
            cells.append(f"{point[kind]:,}")
            for used in (points, points[:n] + points[n + 1 :]):
                fit = _fit(used, kind)
                counts = parts(config, point["dsps"])
                value = sum(cost * counts[name] for name, cost in fit.items())
                cells.append(f"{100 * (value / point[kind] - 1):+.1f} %")
        print(f"| {config.name} | {point['dsps']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
