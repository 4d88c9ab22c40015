# SPDX-License-Identifier: Apache-2.0
"""Losses equal their formulas, and both forms of distillation pull the same way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitwright.train import TrainConfig
from bitwright.train.loss import (
    attention_loss,
    attention_map,
    cross_entropy,
    distillation_loss,
    divergence,
    label_loss,
    objective,
    relative_error,
    soft_loss,
    squared_log_error,
)

FOUND = torch.tensor([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]], dtype=torch.float64)
WANTED = torch.tensor([[0.0, 1.0, 0.0], [0.6, 0.3, 0.1]], dtype=torch.float64)


def pairs() -> list[tuple[float, float]]:
    return list(zip(FOUND.flatten().tolist(), WANTED.flatten().tolist(), strict=True))


def test_losses_equal_their_formulas() -> None:
    n = len(pairs())
    assert float(squared_log_error(FOUND, WANTED)) == pytest.approx(
        sum((math.log(t + 1) - math.log(p + 1)) ** 2 for p, t in pairs()) / n
    )
    gain = sum(t * (math.log(t) - math.log(p)) for p, t in pairs() if t > 0)
    assert float(divergence(FOUND, WANTED)) == pytest.approx(gain / len(FOUND))
    entropy = -sum(t * math.log(p) for p, t in pairs())
    scores = FOUND.log() + 3.0  # softmax takes the constant away
    assert float(cross_entropy(scores, WANTED)) == pytest.approx(entropy / len(FOUND))
    labels = torch.tensor([1, 0])
    assert float(cross_entropy(scores, labels)) == pytest.approx(
        -(math.log(0.5) + math.log(0.7)) / 2
    )


def test_losses_on_labels_are_those_of_probabilities() -> None:
    scores, labels = FOUND.log(), torch.tensor([1, 0])
    hot = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    ways = {
        "mse": lambda found, wanted: (wanted - found).square().mean(),
        "mae": lambda found, wanted: (wanted - found).abs().mean(),
        "msle": squared_log_error,
    }
    for kind, way in {**ways, "kld": divergence}.items():
        assert torch.allclose(label_loss(scores, labels, kind), way(FOUND, hot))
        smooth = label_loss(scores, labels, kind, 0.3)
        assert torch.allclose(smooth, way(FOUND, hot * 0.7 + 0.1))
    # With one class certain, divergence and cross entropy are one.
    assert torch.allclose(label_loss(scores, labels, "kld"), cross_entropy(scores, labels))


def test_a_squared_hinge_pulls_up_to_the_margin_and_no_further() -> None:
    scores = torch.tensor([[0.5, -2.0, 3.0]], requires_grad=True)
    found = label_loss(scores, torch.tensor([0]), "squared_hinge")
    assert float(found.detach()) == pytest.approx((0.5**2 + 0 + 4**2) / 3)
    found.backward()
    assert torch.allclose(scores.grad, torch.tensor([[-1.0, 0.0, 8.0]]) / 3)
    done = label_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([0]), "squared_hinge")
    assert float(done) == 0


def gradient(scores: Tensor, **how: object) -> Tensor:
    scores = scores.clone().requires_grad_()
    distillation_loss(scores, TEACHER, LABELS, **how).backward()
    assert scores.grad is not None
    return scores.grad


GENERATOR = torch.Generator().manual_seed(3)
STUDENT = 4 * torch.randn((6, 5), generator=GENERATOR, dtype=torch.float64)
TEACHER = 4 * torch.randn((6, 5), generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])


@settings(max_examples=25, deadline=None)
@given(
    alpha=st.floats(0.0, 1.0),
    temperature=st.floats(0.5, 30.0),
    reduction=st.sampled_from(["batchmean", "mean"]),
)
def test_both_forms_have_the_same_gradient(
    alpha: float, temperature: float, reduction: str
) -> None:
    how = {"alpha": alpha, "temperature": temperature, "reduction": reduction}
    divergent = gradient(STUDENT, form="kl", **how)
    crossed = gradient(STUDENT, form="ce", **how)
    assert torch.allclose(divergent, crossed, atol=1e-12)
    values = [distillation_loss(STUDENT, TEACHER, LABELS, form=f, **how) for f in ("kl", "ce")]
    soft = torch.softmax(TEACHER / temperature, dim=1)
    terms = -soft * soft.log()  # the teacher's entropy is what the forms differ by
    entropy = terms.mean() if reduction == "mean" else terms.sum(dim=1).mean()
    assert torch.allclose(values[1] - values[0], alpha * temperature**2 * entropy)


def test_the_parts_of_distillation_are_written_out() -> None:
    scores, temperature = STUDENT, 3.0
    p, q = (torch.softmax(z / temperature, dim=1) for z in (TEACHER, scores))
    soft = (p * (p / q).log()).sum(dim=1)
    hard = -torch.log_softmax(scores, dim=1)[torch.arange(6), LABELS]
    how = {"alpha": 0.7, "temperature": temperature}
    batch = 0.7 * 9 * soft.mean() + 0.3 * hard.mean()
    assert torch.allclose(distillation_loss(scores, TEACHER, LABELS, **how), batch)
    element = 0.7 * 9 * soft.mean() / 5 + 0.3 * hard.mean()
    found = distillation_loss(scores, TEACHER, LABELS, reduction="mean", **how)
    assert torch.allclose(found, element)


def test_no_weight_is_no_part() -> None:
    plain = cross_entropy(STUDENT, LABELS)
    silent = distillation_loss(STUDENT, TEACHER * math.inf, LABELS, alpha=0.0, temperature=2.0)
    assert torch.equal(silent, plain)
    unknown = torch.full_like(LABELS, -1)
    alone = distillation_loss(STUDENT, TEACHER, unknown, alpha=1.0, temperature=2.0)
    assert torch.equal(alone, soft_loss(STUDENT, TEACHER, temperature=2.0))


def test_the_objective_of_a_learner_follows_its_settings() -> None:
    learned = {"alpha": 0.4, "temperature": 2.0, "form": "ce", "reduction": "mean"}
    config = TrainConfig(loss="mse", label_smoothing=0.1, distillation=learned)
    wanted = 0.6 * label_loss(STUDENT, LABELS, "mse", 0.1) + 0.4 * soft_loss(
        STUDENT, TEACHER, temperature=2.0, form="ce", reduction="mean"
    )
    assert torch.allclose(objective(STUDENT, LABELS, TEACHER, config), wanted)
    alone = label_loss(STUDENT, LABELS, "mse", 0.1)
    assert torch.equal(objective(STUDENT, LABELS, None, config), alone)


def test_attention_is_where_a_layer_looks() -> None:
    maps = torch.zeros(2, 3, 2, 2)
    maps[0, :, 0, 1] = torch.tensor([3.0, 0.0, 4.0])
    maps[1] = 1.0
    found = attention_map(maps)
    assert torch.allclose(found[0], torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert torch.allclose(found[1], torch.full((4,), 0.5))
    assert attention_loss(maps, 7 * maps[:, :1].clone() + 0 * maps[:, :1]) >= 0
    wide = torch.cat([maps, maps], dim=1)  # the same places, more channels, other size
    assert float(attention_loss(5 * maps, wide)) == pytest.approx(0.0, abs=1e-12)
    turned = maps.flip(3)
    assert float(attention_loss(maps[:1], turned[:1])) == pytest.approx(2.0)
    empty = torch.zeros(1, 2, 3, 3, requires_grad=True)  # a dead layer has finite gradients
    attention_loss(empty, torch.ones(1, 2, 3, 3)).backward()
    assert empty.grad is not None and torch.isfinite(empty.grad).all()


def test_relative_error_is_a_share() -> None:
    wanted = torch.tensor([3.0, 4.0])
    assert float(relative_error(torch.zeros(2), wanted)) == pytest.approx(1.0)
    assert float(relative_error(10 * wanted, 5 * wanted)) == pytest.approx(1.0)
