# SPDX-License-Identifier: Apache-2.0
"""Face verification: thresholds, folds, standard errors, comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.face_protocols import synthetic_protocol

from bitwright.base.errors import DataError, RecipeError
from bitwright.explore.search.metrics import EmbeddingAgreement
from bitwright.papers.faces.embedding import make_pool
from bitwright.papers.faces.identities import extract_features
from bitwright.papers.faces.pairs import PairRows
from bitwright.papers.faces.verification import (
    Sweep,
    choose_threshold,
    verification_accuracy,
    verify_embeddings,
)


def rows(count: int) -> PairRows:
    index = np.arange(count)
    return PairRows(index, index + count, index % 2 == 0, np.zeros(count, np.int64))


class Elsewhere(torch.nn.Module):
    """A network on another device than its images, which says if a batch was not moved there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(1, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "meta"
        return torch.arange(4.0 * len(x)).view(-1, 4)


def test_batches_go_to_the_device_of_the_model() -> None:
    protocol = synthetic_protocol(people=4, each=2, size=8)
    assert len(verification_accuracy(Elsewhere(), protocol).right)
    assert extract_features(Elsewhere(), protocol.faces).shape == (8, 4)
    assert EmbeddingAgreement.of(Elsewhere(), torch.rand(5, 3, 8, 8)).reference.shape == (5, 4)
    faces = np.zeros((4, 8, 8), np.uint8)
    assert make_pool(faces, Elsewhere(), 4, side=8).targets.shape == (4, 4)


def test_threshold_of_the_middle_and_of_the_start():
    distances = np.array([0.1, 0.2, 0.6, 0.7])
    matched = np.array([True, True, False, False])
    assert choose_threshold(distances, matched, Sweep()) == pytest.approx((0.4, 1.0))
    first = choose_threshold(distances, matched, Sweep(on_ties="first"))
    assert first == pytest.approx((0.21, 1.0))


def test_finer_step_finds_what_the_coarse_one_misses():
    distances, matched = np.array([0.501, 0.509]), np.array([True, False])
    assert choose_threshold(distances, matched, Sweep(step=0.1))[1] == 0.5
    assert choose_threshold(distances, matched, Sweep(step=0.001))[1] == 1.0


def test_sweep_of_any_scale():
    protocol = synthetic_protocol()
    flat = protocol.faces.data.reals().reshape(len(protocol.faces), -1).astype(np.float64)
    small = verify_embeddings(flat * 1e-3, protocol, Sweep(hi=None))
    large = verify_embeddings(flat * 1e3, protocol, Sweep(hi=None))
    assert small.folds == large.folds
    assert large.threshold == pytest.approx(1e6 * small.threshold)
    assert verify_embeddings(np.zeros_like(flat), protocol, Sweep(hi=None)).accuracy == 0.5


@pytest.mark.parametrize("settings", [{"hi": 0.0}, {"step": 0.0}, {"lo": -1.0}, {"fixed": -0.1}])
def test_impossible_sweeps(settings: dict[str, float]):
    with pytest.raises(RecipeError, match="verification"):
        Sweep(**settings)  # type: ignore[arg-type]


def test_easy_faces_are_told_apart_and_noise_makes_it_harder():
    def mean_colours(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)

    found = [
        verification_accuracy(mean_colours, synthetic_protocol(noise=noise)) for noise in (0.1, 2.0)
    ]
    assert found[0].accuracy == 1.0
    assert found[0].right.all()
    assert 0.5 < found[1].accuracy < 1.0
    assert len(found[1].folds) == 10
    assert found[1].accuracy == pytest.approx(found[1].right.mean())
    assert found[1].row() == f"{100 * found[1].accuracy:.2f} +/- {100 * found[1].stderr:.2f}"


def test_given_threshold_is_used_as_it_is():
    protocol = synthetic_protocol()
    found = verification_accuracy(lambda x: x.flatten(1), protocol, Sweep(fixed=0.0))
    assert (found.threshold, found.accuracy) == (0.0, 0.5)
    assert math.isnan(found.view1)


def test_module_keeps_its_mode():
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return x.flatten(1)

    net = Net().train()
    verification_accuracy(net, synthetic_protocol(people=4, each=2, size=8))
    assert net.training


def test_bad_embeddings():
    protocol = synthetic_protocol(people=4, each=2, size=8)
    with pytest.raises(DataError, match="finite"):
        verification_accuracy(lambda x: x.flatten(1) * math.nan, protocol)
    with pytest.raises(DataError, match=r"must be \(8, D\)"):
        verification_accuracy(lambda x: x.sum((1, 2, 3)), protocol)
    with pytest.raises(DataError, match="3 embeddings for 8 faces"):
        verify_embeddings(np.zeros((3, 2)), protocol)


def test_a_sweep_that_ends_too_early_says_so(caplog) -> None:
    distances = np.array([3.0, 4.0, 20.0, 30.0])
    matched = np.array([True, True, False, False])
    choose_threshold(distances, matched, Sweep())
    assert "sweep further" in caplog.text
    caplog.clear()
    assert choose_threshold(distances, matched, Sweep(hi=None))[1] == 1.0
    assert not caplog.text


@pytest.mark.parametrize(("hi", "step"), [(1e308, 1e-308), (1e9, 1e-9), (1.0, 9e-6)])
def test_a_sweep_has_an_end(hi: float, step: float) -> None:
    with pytest.raises(RecipeError, match="more than 100,000 thresholds from 0 to"):
        Sweep(hi=hi, step=step)
