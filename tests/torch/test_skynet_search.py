# SPDX-License-Identifier: Apache-2.0
"""Networks of SkyNet's search, and what one of them is worth: by the pipeline's own models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bitwright.base.errors import ModelError, TargetError
from bitwright.data import DataSplits
from bitwright.explore.changes import job_arguments
from bitwright.models import build_model
from bitwright.models.output import Output
from bitwright.papers.skynet.search.candidate import BUNDLES, Candidate
from bitwright.papers.skynet.search.measure import Bench, measure_candidate, recipe_for
from bitwright.papers.skynet.search.run import SearchRequest, run_search
from bitwright.papers.skynet.search.swarm import Bounds, Fitness, Settings
from bitwright.pipeline.api import estimate_recipe
from bitwright.pipeline.recipe import Recipe, load_recipe

OUTPUT = Output((10, None, None), "boxes", "")
CHANGES = [
    "data.image_size=[16, 16]",
    "data.keep={train: 64, validation: 24, test: 24}",
    "hardware.target_fps=null",
    "hardware.fill=0.5",
    "task.options={anchors: 2}",
]


def recipe() -> Recipe:
    return load_recipe("shapes-boxes-w4a4", CHANGES)


@pytest.mark.parametrize("bundle", BUNDLES)
@pytest.mark.parametrize("bypass", [False, True])
def test_every_bundle_makes_a_detector(bundle: str, bypass: bool) -> None:
    candidate = Candidate(bundle, (8, 12, 8), (True, True, False), bypass)
    spec = {"name": "bundle_net", "options": candidate.to_options()}
    model = build_model(spec, None, (16, 24, 3), output=OUTPUT)
    assert model(torch.zeros((2, 3, 16, 24))).shape == (2, 10, 4, 6)
    kinds = [each for each in model.modules() if isinstance(each, torch.nn.Conv2d)]
    assert len(kinds) == 3 * len(BUNDLES[bundle]) + 1
    with pytest.raises(ModelError, match="no multiple of a cell of 4"):
        build_model(spec, None, (18, 24, 3), output=OUTPUT)


def test_the_bypass_brings_the_finer_map_to_the_last_bundle() -> None:
    candidate = Candidate("conv3", (4, 4, 4), (True, False, False), bypass=True)
    spec = {"name": "bundle_net", "options": candidate.to_options()}
    model = build_model(spec, None, (8, 8, 1), output=OUTPUT).eval()
    seen = {}
    model.bundles[0].register_forward_hook(lambda _, x, y: seen.update(early=y))
    model.bundles[2].register_forward_hook(lambda _, x, y: seen.update(joined=x[0]))
    model(torch.rand((1, 1, 8, 8)))
    early = seen["early"]
    assert seen["joined"].shape == (1, 4 * 4 + 4, 4, 4)
    assert torch.equal(seen["joined"][:, 4:8], early[:, :, ::2, 1::2])  # dy 0, dx 1


def test_a_candidate_costs_what_its_recipe_is_estimated_at(tmp_path: Path) -> None:
    candidate = Candidate("dw3-pw", (4, 8), (True, True))
    changed = recipe_for(recipe(), candidate, epochs=2)
    assert changed.train.float_.epochs == 2
    found = measure_candidate(job_arguments(changed), tmp_path)
    estimate = estimate_recipe(changed)
    assert found["interval"] == estimate["interval"] and found["latency"] == estimate["latency"]
    clock = found["clock_mhz"]
    assert found["interval_ms"] == pytest.approx(estimate["interval"] / clock / 1e3)
    assert 0 <= found["accuracy"] <= 1 and found["metric"] == "IoU"


def test_what_does_not_fit_is_kept_with_its_reason(tmp_path: Path) -> None:
    small = load_recipe(
        "shapes-boxes-w4a4", [*CHANGES[:2], "task.options={anchors: 2}", "hardware.fill=null",
                              "hardware.target_fps=900000"]
    )  # fmt: skip
    candidate = Candidate("conv3", (32, 32), (True, True))
    found = measure_candidate(job_arguments(recipe_for(small, candidate, 1)), tmp_path)
    assert set(found) == {"reason"} and found["reason"]


def test_figures_of_other_images_are_not_those_of_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who changed the images in a folder and searched again got the accuracies of before."""
    candidate = Candidate("dw3-pw", (4, 8), (True, True))
    one, again = (Bench(recipe(), tmp_path)._job(candidate, 2) for _ in range(2))
    assert one.request == again.request
    monkeypatch.setattr(DataSplits, "digest", lambda splits: "other images")
    other = Bench(recipe(), tmp_path)._job(candidate, 2)
    assert other.folder == one.folder and other.version != one.version


@pytest.mark.slow
def test_a_search_goes_on_from_what_it_knows(tmp_path: Path) -> None:
    settings = Settings(("dw3-pw", "conv3"), 2, (1, 2), Bounds(2, 2, 4, 12), Fitness(-0.01, 1.0))
    request = SearchRequest(recipe(), settings, "swarm", tmp_path, bundles=1, sketch=4, workers=2)
    first = run_search(request)
    assert len(first.trials) == 1 * 2 * 2 and len(first.sketches) == 2
    results = sorted(tmp_path.glob("candidates/*/result.json"))
    times = [path.stat().st_mtime_ns for path in results]
    again = run_search(request)
    assert [t.candidate for t in again.trials] == [t.candidate for t in first.trials]
    assert times == [path.stat().st_mtime_ns for path in results]
    chosen = load_recipe(tmp_path / "chosen.yaml")
    assert chosen.model.name == "bundle_net"
    impossible = Settings(*(settings.groups, 2, (1, 2), settings.bounds, Fitness(-0.01, 1e-6)))
    with pytest.raises(TargetError, match=r"none of 4 candidates takes 1e-06 ms[\s\S]*nearest is"):
        run_search(SearchRequest(recipe(), impossible, "swarm", tmp_path, bundles=1, sketch=4))
    assert not (tmp_path / "chosen.yaml").exists()  # the one that met another target
    bench = Bench(recipe(), tmp_path / "candidates")
    known = bench([first.trials[-1].candidate], 2)[0]
    assert known == first.trials[-1].measured
