# SPDX-License-Identifier: Apache-2.0
"""Several boxes an image: suppression, matching, average precision, anchors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory_peak import peak

from bitwright.base.errors import DataError
from bitwright.data import detection_many
from bitwright.data.detection_boxes import (
    ANCHORS,
    Candidates,
    decode,
    decode_all,
    iou,
    overlap_over_truth,
)
from bitwright.data.detection_many import (
    Found,
    average_precision,
    choose_anchors,
    match,
    most_confident,
    suppress,
)


def boxes_of(seed: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 0.7, (count, 2))
    return np.concatenate([low, low + rng.uniform(0.05, 0.5, (count, 2))], axis=1)


def test_the_best_of_all_boxes_is_the_one_that_is_decoded_alone() -> None:
    output = np.random.default_rng(0).normal(size=(5, 10, 3, 4))
    one, every = decode(output), decode_all(output)
    best = every.scores[:, :, 0].argmax(axis=1)
    rows = np.arange(5)
    assert np.array_equal(every.boxes[rows, best], one.boxes)
    assert np.array_equal(every.scores[rows, best, 0], one.confidence)


def test_centres_reach_beyond_their_cells() -> None:
    """A reach of 3 spreads the sigmoid from one cell before to one behind."""
    raw = np.full((1, 5, 2, 4), -20.0)
    raw[0, :, 1, 2] = (-20.0, 20.0, 0.0, 0.0, 1.0)  # as far left and down as it goes
    found = decode(raw, [(1.0, 1.0)], 3.0)
    assert found.boxes[0] == pytest.approx([0.5 / 4, 2.5 / 2, 1.5 / 4, 3.5 / 2])
    raw[0, :2, 1, 2] = 0  # the middle of the cell, whatever the reach
    for reach in (1.0, 2.0, 5.0):
        every = decode_all(raw, [(1.0, 1.0)], reach=reach)
        assert np.array_equal(every.boxes[0, 6], decode(raw, [(1.0, 1.0)], reach).boxes[0])
        assert every.boxes[0, 6] == pytest.approx([2 / 4, 1 / 2, 3 / 4, 2 / 2])


def test_boxes_are_merged_by_score_with_those_of_their_class() -> None:
    boxes = np.array([[0, 0, 0.4, 0.4], [0, 0, 0.4, 0.5], [0, 0, 0.5, 0.4], [0.6, 0.6, 1, 1]])
    scores = np.array([[0.6, 0], [0.3, 0], [0, 0.5], [0.2, 0]])  # the third is another thing
    proposed = Candidates(boxes[None], scores[None])
    (alone,) = most_confident(proposed)
    assert np.array_equal(alone.boxes, boxes[:1]) and alone.scores.tolist() == [0.6]
    (found,) = most_confident(proposed, merge=0.7)
    mean = (0.6 * boxes[0] + 0.3 * boxes[1]) / 0.9
    assert found.boxes[0] == pytest.approx(mean)
    assert found.scores.tolist() == [0.6] and found.classes.tolist() == [0]
    assert np.array_equal(most_confident(proposed, merge=0.9)[0].boxes, boxes[:1])
    (several,) = suppress(proposed, score=0.1, overlap=0.45, merge=0.7)
    assert several.boxes == pytest.approx(np.stack([mean, boxes[2], boxes[3]]))
    assert several.scores.tolist() == [0.6, 0.5, 0.2]
    (none,) = suppress(proposed, score=0.9, overlap=0.45, merge=0.7)
    assert none.boxes.shape == (0, 4)
    unsure = Candidates(boxes[None], 0 * scores[None])  # a score may round to nothing
    assert np.array_equal(most_confident(unsure, merge=0.7)[0].boxes, boxes[:1])


def test_a_box_has_a_part_in_one_mean() -> None:
    """Else boxes that hide nothing of each other would become the same."""
    apart = np.array([[0, 0, 0.4, 0.8], [0.15, 0, 0.55, 0.8]])  # they share 0.4545
    scores = np.array([[0.9], [0.8]])
    (found,) = suppress(Candidates(apart[None], scores[None]), score=0.1, overlap=0.46, merge=0.4)
    assert found.boxes == pytest.approx(apart)
    between = np.concatenate([apart, [[0.07, 0, 0.47, 0.8]]])
    scores = np.array([[0.9], [0.8], [0.5]])
    proposed = Candidates(between[None], scores[None])
    (found,) = suppress(proposed, score=0.1, overlap=0.46, merge=0.6)
    assert found.boxes[0] == pytest.approx((0.9 * between[0] + 0.5 * between[2]) / 1.4)
    assert found.boxes[1] == pytest.approx(between[1])


def test_what_is_found_is_cut_to_the_image() -> None:
    found = Found(np.array([[-0.2, 0.1, 0.5, 1.3]]), np.ones(1), np.zeros(1, dtype=np.int64))
    assert found.inside().boxes.tolist() == [[0, 0.1, 0.5, 1]]


def test_scores_of_classes_share_the_confidence() -> None:
    output = np.random.default_rng(1).normal(size=(2, 16, 3, 4))
    every = decode_all(output, ANCHORS, classes=3)
    confidence = 1 / (1 + np.exp(-output.reshape(2, 2, 8, 3, 4)[:, :, 4]))
    assert every.scores.sum(axis=2) == pytest.approx(confidence.reshape(2, -1))
    with pytest.raises(DataError, match=r"gives \(N, 16, H, W\), found \(2, 10, 3, 4\)"):
        decode_all(output[:, :10], ANCHORS, classes=3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.1, 0.9))
def test_suppression_keeps_what_the_definition_keeps(seed: int, count: int, least: float) -> None:
    rng = np.random.default_rng(seed)
    boxes = boxes_of(seed, count)
    scores = np.round(rng.uniform(size=(count, 2)), 1)  # equal ones, too
    (found,) = suppress(Candidates(boxes[None], scores[None]), score=0.3, overlap=least)
    kept: list[int] = []
    for at in sorted(range(count), key=lambda i: -scores[i].max()):
        kind = scores[at].argmax()
        rivals = [k for k in kept if scores[k].argmax() == kind]
        if scores[at].max() > 0.3 and all(iou(boxes[at], boxes[k]) <= least for k in rivals):
            kept.append(at)
    assert np.array_equal(found.boxes, boxes[kept])
    assert np.array_equal(found.scores, scores[kept].max(axis=1, initial=0))


def test_a_true_box_is_found_once_and_by_its_own_class() -> None:
    truth = np.array([[0, 0.0, 0.0, 0.4, 0.4], [1, 0.5, 0.5, 1.0, 1.0]])
    boxes = np.array([[0, 0, 0.4, 0.4], [0, 0, 0.4, 0.3], [0.5, 0.5, 1, 1], [0.5, 0.5, 1, 0.8]])
    found = Found(boxes, np.array([0.9, 0.8, 0.7, 0.6]), np.array([0, 0, 0, 1]))
    numbers, shares = match(found, truth)
    assert numbers.tolist() == [0, -1, -1, 1]
    assert shares.tolist() == pytest.approx([1, 0, 0, 0.6])
    assert match(found, truth, least=0.7)[0].tolist() == [0, -1, -1, -1]
    assert match(found, truth[:0])[0].tolist() == [-1] * 4


def test_many_true_boxes_are_matched_some_found_ones_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """400 000 boxes on one image took 8 GB: 64 bytes a pair, of 300 found ones with all of them."""
    rng = np.random.default_rng(0)
    found = Found(boxes_of(1, 50), rng.random(50), rng.integers(0, 3, 50))
    truth = np.concatenate([rng.integers(0, 3, (80, 1)), boxes_of(2, 80)], axis=1)
    whole = match(found, truth, least=0.1)
    assert (whole[0] >= 0).sum() > 10
    for pairs in (1, 170, 4000):
        monkeypatch.setattr(detection_many, "_PAIRS", pairs)
        for one, other in zip(match(found, truth, least=0.1), whole, strict=True):
            assert np.array_equal(one, other)
    monkeypatch.setattr(detection_many, "_PAIRS", 1 << 12)
    assert peak(lambda: match(found, np.tile(truth, (50, 1)))) < 2 << 20


def test_average_precision_of_a_case_by_hand() -> None:
    # Right, wrong, right of three true boxes: precision 1 at 1/3, 2/3 at 2/3.
    right, wrong = np.array([1.0, 0, 1]), np.array([0.0, 1, 0])
    assert average_precision(right, wrong, np.array(3.0)) == pytest.approx(1 / 3 + 2 / 3 / 3)
    assert average_precision(right, 0 * wrong, np.array(2.0)) == 1
    assert average_precision(0 * right, wrong, np.array(0.0)) == 0
    rows = average_precision(np.stack([right, right]), np.stack([wrong, 0 * wrong]), np.full(2, 2))
    assert rows == pytest.approx([0.5 + 2 / 3 / 2, 1])


def test_the_overlap_of_the_thesis_asks_for_the_true_box_alone() -> None:
    truth, image = [0.2, 0.2, 0.4, 0.4], [0, 0, 1, 1]
    assert overlap_over_truth(image, truth) == 1 and iou(image, truth) == pytest.approx(0.04)
    assert overlap_over_truth([0.3, 0.2, 0.9, 0.4], truth) == pytest.approx(0.5)


def test_anchors_are_the_sizes_that_there_are() -> None:
    rng = np.random.default_rng(0)
    true = np.array([[0.05, 0.1], [0.3, 0.2], [0.6, 0.9]])
    sizes = (true[:, None] * rng.uniform(0.95, 1.05, (3, 40, 2))).reshape(-1, 2)
    assert choose_anchors(sizes, 3) == pytest.approx(true, rel=0.02)
    assert choose_anchors(sizes[::-1], 3) == pytest.approx(choose_anchors(sizes, 3))
    with pytest.raises(DataError, match="2 different sizes"):
        choose_anchors(np.array([[0.1, 0.2], [0.1, 0.2], [0.3, 0.2]]), 3)
