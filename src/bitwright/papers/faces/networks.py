# SPDX-License-Identifier: Apache-2.0
"""The networks of the face matrix: each row's, as the public tools make it and as we do."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bitwright.explore.model_sizes import model_size
from bitwright.explore.search.metrics import Top1
from bitwright.explore.sizes import FLOAT_BITS, SizeReport, network_rate
from bitwright.formats import parse_format
from bitwright.formats.clustering import kmeans
from bitwright.interop.model_files import load_model, save_model
from bitwright.papers.faces.clustered_sizes import clustered_rate, index_bits
from bitwright.papers.faces.identities import (
    append_identities,
    choose_faces,
    extract_features,
    remove_identities,
    top1,
    train_identities,
)
from bitwright.papers.faces.images import FaceSet
from bitwright.papers.faces.plans import Contest, Plan, ours
from bitwright.papers.faces.recipe import FOLDED, FaceMatrixRecipe, Row
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.papers.ristretto.layers import layers_of, with_rules
from bitwright.papers.ristretto.run import RuleMaker, ristretto_size, search_ristretto
from bitwright.papers.ristretto.search import Parity, Setting, TrimmingMode
from bitwright.quantize.policy import Policy
from bitwright.quantize.ptq import fold_batch_norms, fold_groups, post_training_quantize
from bitwright.quantize.ptq.choice import choose_policy
from bitwright.quantize.ptq.ranges import measure_ranges

MODES = {
    "minifloat": TrimmingMode.MINIFLOAT,
    "dfp": TrimmingMode.DYNAMIC_FIXED_POINT,
    "pow2": TrimmingMode.INTEGER_POWER_OF_2_WEIGHTS,
}
_FIXED_BITS = 8
_HYBRID_BITS = 8


@dataclass(frozen=True)
class Made:
    """A network of one row.

    Attributes:
        formats: in words.
        parameter_rate, network_rate, memory_ratio: see `explore.sizes`; None where a figure would
            say nothing.
    """

    network: nn.Module
    formats: str
    parameter_rate: float | None = None
    network_rate: float | None = None
    memory_ratio: float | None = None

    @classmethod
    def sized(cls, network: nn.Module, formats: str, size: SizeReport) -> Made:
        """With the rates of a size."""
        return cls(network, formats, size.parameter_rate, size.network_rate, size.memory_ratio)


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and the faces of known people."""

    name: str
    model: nn.Module
    known: FaceSet
    recipe: FaceMatrixRecipe

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        height, width, channels = self.known.data.image_shape
        return channels, height, width

    @cached_property
    def folded(self) -> nn.Module:
        return fold_batch_norms(self.model, torch.zeros(1, *self.shape))

    def form(self, form: str) -> nn.Module:
        """The float network, folded or not."""
        return self.folded if form == FOLDED else self.model

    @cached_property
    def calibration(self) -> Tensor:
        """Images of known people, evenly chosen."""
        count = min(self.recipe.calibration, len(self.known))
        step = len(self.known) / count
        rows = [int(step * i) for i in range(count)]
        return torch.from_numpy(self.known.data.take(rows).reals())

    @cached_property
    def people(self) -> FaceSet:
        """The faces that the closed-set classifier learns."""
        wanted = self.recipe.identities
        return choose_faces(self.known, wanted.people, wanted.each)

    @cached_property
    def classifier(self) -> nn.Module:
        """The closed-set classifier of the searches."""
        return train_identities(extract_features(self.model, self.people), self.people.data.labels)

    @cached_property
    def judges(self) -> FaceSet:
        """The faces that a setting is scored on: the last ones of each person."""
        labels, each = self.people.data.labels, self.recipe.search.each
        rows = [np.flatnonzero(labels == k)[-each:] for k in range(len(self.people.people))]
        return self.people.take(np.concatenate(rows))

    def top1(self) -> float:
        """Accuracy of the classifier on all faces that it has learned."""
        return top1(append_identities(self.model, self.classifier), self.people)


def make_plain(subject: Subject, row: Row) -> Made:
    """The network of a row as the public tools make it (or the float one)."""
    if row.method == "float":
        return Made(subject.form(row.form), "float32", 1.0, 1.0, 1.0)
    if row.method == "converted":
        return Made(converted(subject), "float32, through .prototxt and .caffemodel", 1.0, 1.0, 1.0)
    parity = Parity(subject.recipe.search.parity)
    if row.method == "dfp8":
        return _fixed_widths(subject, subject.form(row.form), parity)
    if row.method in MODES:
        return _searched(subject, subject.form(row.form), MODES[row.method], parity)
    if row.method == "hybrid":
        return _plain_hybrid(subject)
    scope = row.method.removeprefix("kmeans-")
    return clustered(subject, scope, getattr(subject.recipe.clusters, scope))


def make_ours(subject: Subject, row: Row) -> Made:
    """The network of a row with the methods of this package."""
    if row.method == "dfp8":
        return _fixed_widths(subject, subject.form(row.form), Parity.MENDED)
    if row.form != FOLDED:
        return _searched(subject, subject.model, MODES[row.method], Parity.MENDED)
    return _quantized(subject, row.method)


def converted(subject: Subject) -> nn.Module:
    """The network written as Caffe's two files and read back."""
    channels, height, width = subject.shape
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.prototxt"
        save_model(subject.model, "caffe", path, (height, width, channels))
        return load_model(path).model.eval()


def _searched(subject: Subject, model: nn.Module, mode: TrimmingMode, parity: Parity) -> Made:
    """Ristretto's search on the network with its classifier, which is then taken away."""
    settings = subject.recipe.search
    whole = append_identities(model, subject.classifier)
    found = search_ristretto(
        whole,
        Top1(subject.judges.data),
        subject.calibration,
        mode=mode,
        margin=settings.margin,
        parity=parity,
        weight_exponent_bits=settings.weight_exponent_bits,
    )
    prefix = "extractor."
    rules = {
        path.removeprefix(prefix): rule
        for path, rule in found.rules.items()
        if path.startswith(prefix)
    }
    assert remove_identities(whole) is model
    size = ristretto_size(model, rules, subject.shape)
    words = _setting_words(found.outcome.chosen, mode, settings.weight_exponent_bits)
    return Made.sized(with_rules(model, rules), words, size)


def _fixed_widths(subject: Subject, model: nn.Module, parity: Parity) -> Made:
    """Dynamic fixed point with 8 bits for convolutions, dense layers and features, unsearched."""
    ranges = measure_ranges(model, subject.calibration)
    mode = TrimmingMode.DYNAMIC_FIXED_POINT
    maker = RuleMaker(mode, ranges, Behaviour.of(parity))
    rules = maker.rules(Setting(_FIXED_BITS, _FIXED_BITS, _FIXED_BITS))
    size = ristretto_size(model, rules, subject.shape)
    biases = FLOAT_BITS if parity is Parity.MENDED else _FIXED_BITS
    words = f"{_FIXED_BITS} bits everywhere, unsearched; biases {biases}"
    return Made.sized(with_rules(model, rules), words, size)


def _setting_words(setting: Setting, mode: TrimmingMode, exponent_bits: int) -> str:
    def width(bits: int | None) -> str:
        return str(FLOAT_BITS if bits is None else bits)

    if mode is TrimmingMode.MINIFLOAT:
        if setting.activations is None:
            return "float32"
        mantissa = setting.activations - 1 - setting.exponent
        return f"e{setting.exponent}m{min(mantissa, 23)}"
    if mode is TrimmingMode.INTEGER_POWER_OF_2_WEIGHTS:
        return f"2^k, {exponent_bits} exponent bits; features {width(setting.activations)}"
    return (
        f"{width(setting.conv_params)} convolutions, {width(setting.fc_params)} dense, "
        f"{width(setting.activations)} features"
    )


def cluster_parameters(
    model: nn.Module, clusters: int, groups: Mapping[str, str], centroid: str | None = None
) -> tuple[nn.Module, int, int]:
    """A copy whose weights and biases are centroids: plain k-means on all numbers of a group.

    Args:
        groups: which table each convolution and dense layer has.
        centroid: a minifloat that centroids are rounded to, at scale 1; None keeps them float32.

    Returns:
        The copy, the number of parameters, the number of tables.
    """
    copied = copy.deepcopy(model)
    layers = layers_of(copied)
    count = 0
    tables = list(dict.fromkeys(groups[path] for path in layers))
    for table in tables:
        tensors = [
            tensor
            for path, layer in layers.items()
            if groups[path] == table
            for tensor in (layer.weight, layer.bias)
            if tensor is not None
        ]
        values = torch.cat([tensor.detach().flatten() for tensor in tensors]).double().numpy()
        found = kmeans(values, clusters, allow_fewer=True)
        new = torch.from_numpy(found.values())
        if centroid is not None:
            new = torch.from_numpy(parse_format(centroid).quantized(new.numpy(), 1.0))
        with torch.no_grad():
            for tensor, part in zip(tensors, new.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))
        count += len(values)
    return copied, count, len(tables)


def _tables(subject: Subject, scope: str) -> dict[str, str]:
    groups = fold_groups(subject.folded)
    if scope == "network":
        return dict.fromkeys(groups, "all")
    if scope == "group":
        plain = {path: str(group) for path, group in groups.items()}
        return {path: "conv" if name == "linear" else name for path, name in plain.items()}
    return {path: path for path in groups}


def table_fits(subject: Subject, scope: str, clusters: int) -> bool:
    """Whether the tables of a scope have no more entries than there are parameters."""
    tables = set(_tables(subject, scope).values())
    layers = layers_of(subject.folded).values()
    count = sum(p.numel() for layer in layers for p in layer.parameters(recurse=False))
    return bool(clusters * len(tables) <= count)


def clustered(subject: Subject, scope: str, clusters: int) -> Made:
    """The folded network with plain k-means of a scope (``network``, ``group``, ``layer``)."""
    model, count, sets = cluster_parameters(subject.folded, clusters, _tables(subject, scope))
    rate = clustered_rate(count, clusters, sets)
    bits = index_bits(clusters)
    return Made(
        model,
        f"{sets} tables of {clusters} float32, indices of {bits} bits; features float32",
        rate,
        network_rate(rate, 1.0, 1.0),
        None,
    )


def _plain_hybrid(subject: Subject) -> Made:
    clusters = subject.recipe.clusters.layer
    behaviour = Behaviour.of(Parity(subject.recipe.search.parity))
    ranges = measure_ranges(subject.folded, subject.calibration)
    exponent = ranges.exponent_bits
    name = f"e{exponent}m{_HYBRID_BITS - 1 - exponent}<finite,flush>"
    model, count, sets = cluster_parameters(
        subject.folded, clusters, _tables(subject, "layer"), name
    )
    maker = RuleMaker(TrimmingMode.MINIFLOAT, ranges, behaviour)
    setting = Setting(_HYBRID_BITS, _HYBRID_BITS, _HYBRID_BITS, exponent)
    rate = clustered_rate(count, clusters, sets, _HYBRID_BITS)
    factor = FLOAT_BITS / _HYBRID_BITS
    return Made(
        with_rules(model, maker.rules(setting)),
        f"{sets} tables of {clusters} {name}; all arithmetic in it",
        rate,
        network_rate(rate, factor, factor),
        None,
    )


def _quantized(subject: Subject, method: str) -> Made:
    plan = ours(subject.recipe)[method]
    words = ""
    if isinstance(plan, Contest):
        plan, words = _chosen(subject, plan)
    made, _ = post_training_quantize(
        subject.model, Policy.from_dict(plan.policy), subject.calibration, plan.methods
    )
    size = model_size(made, sample_shape=subject.shape)
    return Made.sized(made, f"{plan.words}; {' + '.join(plan.methods)}{words}", size)


def _chosen(subject: Subject, contest: Contest) -> tuple[Plan, str]:
    """The best plan, and the errors in words. No picture of a person that is measured is seen."""
    policies = {name: Policy.from_dict(plan.policy) for name, plan in contest.plans.items()}
    found = choose_policy(subject.model, policies, subject.calibration, contest.methods)
    errors = ", ".join(f"{name} {100 * error:.3f} %" for name, error in found.errors.items())
    return contest.plans[found.best], f"; by errors of calibration embeddings: {errors}"
