# SPDX-License-Identifier: Apache-2.0
"""The classifier of known identities behind an embedding network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.face_protocols import synthetic_protocol
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.papers.faces.identities import (
    IdentityTraining,
    append_identities,
    choose_faces,
    extract_features,
    remove_identities,
    top1,
    train_identities,
)
from bitwright.papers.faces.verification import verification_accuracy


def extractor() -> nn.Module:
    """128 fixed features of an image."""
    torch.manual_seed(3)
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 128))


@pytest.mark.long
def test_thirty_identities_fifteen_images():
    protocol = synthetic_protocol(people=32, each=15, size=16)
    known = choose_faces(protocol.faces, 30, 15)
    features = extract_features(extractor(), known)
    assert features.shape == (450, 128)
    assert np.bincount(known.data.labels).tolist() == [15] * 30
    labels = known.data.labels
    classifier = train_identities(features, labels)
    assert [m.out_features for m in classifier if isinstance(m, nn.Linear)] == [100, 100, 30]
    network = append_identities(extractor(), classifier)
    assert top1(network, known) >= 0.99
    strangers = append_identities(extractor(), train_identities(features, labels[::-1].copy()))
    assert top1(strangers, known) < 0.1


def test_appending_and_removing_change_nothing():
    protocol = synthetic_protocol(people=6, each=4, size=16)
    network = extractor()
    before = verification_accuracy(network, protocol).folds
    known = choose_faces(protocol.faces, 3, 4)
    whole = append_identities(
        network, train_identities(extract_features(network, known), known.data.labels)
    )
    assert whole(torch.zeros(1, 3, 16, 16)).shape == (1, 3)
    assert remove_identities(whole) is network
    assert verification_accuracy(remove_identities(whole), protocol).folds == before
    with pytest.raises(ModelError, match="no classifier"):
        remove_identities(network)


def test_training_is_repeatable_and_leaves_the_random_state():
    protocol = synthetic_protocol(people=4, each=4, size=16)
    features = extract_features(extractor(), protocol.faces)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, second = (
        train_identities(features, protocol.faces.data.labels, IdentityTraining(epochs=2))
        for _ in range(2)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_more_than_there_is():
    faces = synthetic_protocol(people=4, each=3, size=8).faces
    with pytest.raises(DataError, match="30 identities are asked for, there are 4"):
        choose_faces(faces, 30, 3)
    with pytest.raises(DataError, match="p0 has 3"):
        choose_faces(faces, 2, 15)
    with pytest.raises(RecipeError, match="epochs"):
        IdentityTraining(epochs=0)
