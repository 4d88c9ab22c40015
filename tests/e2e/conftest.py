# SPDX-License-Identifier: Apache-2.0
"""One tiny network, built once through simulation, shared by the tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.e2e.tiny import tiny_recipe

from bitwright.pipeline.api import Pipeline

SHARING = {"test_sweep.py", "test_study.py", "test_joins.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share something made once, one build or one sweep, in one process."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "built" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("built"))
        elif item.path.name in SHARING and here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with every step but ``implement`` done; not to be changed."""
    folder = tmp_path_factory.mktemp("built") / "run"
    pipeline = Pipeline(tiny_recipe(), folder)
    pipeline.build(until="simulate")
    pipeline.step("report")
    return folder


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed at will."""
    return Path(shutil.copytree(built, tmp_path / "run"))
