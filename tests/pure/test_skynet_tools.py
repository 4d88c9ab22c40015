# SPDX-License-Identifier: Apache-2.0
"""SkyNet's tools: what layers cost, fusion, the published fixed point, four images in a picture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tests import hw_networks
from tests.skynet_networks import folded

from bitwright.base.errors import DataError, ModelError
from bitwright.formats import parse_format
from bitwright.ir import Graph
from bitwright.papers.skynet.fixed_graph import fixed_graph, levels_of
from bitwright.papers.skynet.fixed_point import FixedTypes, evaluate_fixed, rounded
from bitwright.papers.skynet.fusion import (
    Window,
    chains_of,
    plan_fusion,
    separable_cost,
    windows,
)
from bitwright.papers.skynet.reference import (
    depthwise,
    max_pool,
    pointwise,
    relu6,
    space_to_depth,
)
from bitwright.papers.skynet.stitch import box_in_image, corner, stitch, unstitch


def test_the_printed_costs() -> None:
    """The first layer of the thesis' example: 320 x 160, three channels to three."""
    found = separable_cost(3, 3, 3, (160, 320))
    assert (found.standard, found.separable, found.saved) == (4_147_200, 1_843_200, 2_304_000)
    assert found.ratio == pytest.approx(1 / 3 + 1 / 9)
    with pytest.raises(ModelError, match="a size above 0"):
        separable_cost(3, 0, 3, (1, 1))


def test_the_printed_windows() -> None:
    chain = [Window("a", 3, 1), Window("b", 3, 1)]
    assert windows(chain) == (5, 3, 1) and windows(chain, 3) == (7, 5, 3)
    assert windows([Window("a", 3, 1), Window("pool", 2, 2), Window("b", 3, 1)]) == (8, 6, 3, 1)


def test_a_plan_counts_what_loops_count() -> None:
    """Without padding: 7 x 7 -> 5 x 5 -> 3 x 3, two channels to three to one."""
    chain = [Window("a", 3, 1, 9 * 2 * 3, 2, 3, (5, 5)), Window("b", 3, 1, 9 * 3, 3, 1, (3, 3))]
    plan = plan_fusion(chain, (7, 7))
    touched = [
        [(y + i, x + j) for i in range(3) for j in range(3)] for y in range(3) for x in range(3)
    ]
    assert plan.recomputed_macs == sum(54 * len(t) + 27 for t in touched)
    assert plan.macs == 54 * len({p for t in touched for p in t}) + 27 * 9
    assert plan.traffic == 98 + 2 * 75 + 9 and plan.fused_traffic == 98 + 9
    assert plan.buffer == 2 * (2 * 7 + 2) + 3 * (2 * 5 + 2)
    assert plan.window == 2 * 25 + 3 * 9
    with pytest.raises(ModelError, match="an empty chain"):
        plan_fusion([], (7, 7))


@pytest.mark.parametrize("name", ["digits_like", "resnet", "densenet", "skynet"])
def test_every_window_of_a_graph_is_in_one_chain(name: str) -> None:
    graph: Graph = getattr(hw_networks, name)()
    chains = chains_of(graph)
    named = [window.name for chain in chains for window in chain]
    wanted = {n.name for n in graph if n.op in ("conv", "max_pool", "sum_pool")}
    assert len(named) == len(set(named)) and set(named) == wanted


def test_windows_of_the_fixed_point_are_those_of_the_network() -> None:
    """Its convolutions round their sums, and slide as any other's."""
    graph = fixed_graph(folded(1), (16, 24, 3), FixedTypes(tile=1))
    found = {window.name: window for chain in chains_of(graph) for window in chain}
    assert set(found) == {n.name for n in graph if n.op in ("conv_rounded", "max_pool")}
    assert found["model_p1_0_0"].kernel == 3 and found["model_p1_0_3"].kernel == 1
    layers = [window for window in found.values() if window.macs]
    shapes = (w.shape for w, _ in folded(1).values())
    assert sorted(w.macs for w in layers) == sorted(int(np.prod(shape)) for shape in shapes)


def by_reference(w: Mapping[str, tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    def bundle(name: str, x: np.ndarray) -> np.ndarray:
        for layer, apply in ((f"{name}.0", depthwise), (f"{name}.3", pointwise)):
            weight, bias = w[layer]
            kernel = weight if apply is depthwise else weight[:, :, 0, 0][:, :, None, None]
            x = relu6(apply(x, kernel) + bias[:, None, None])
        return x

    x = max_pool(bundle("model_p1.0", x))
    early = bundle("model_p1.4", max_pool(bundle("model_p1.2", x)))
    late = bundle("model_p2.2", bundle("model_p2.1", max_pool(early)))
    x = bundle("model_p3.0", np.concatenate([space_to_depth(early), late], axis=1))
    return pointwise(x, w["model_p3.1"][0])


def test_wider_fixed_point_comes_nearer_to_the_network() -> None:
    images = np.random.default_rng(0).uniform(-2, 2, (2, 3, 16, 24))
    expected = by_reference(folded(1), images)
    errors = []
    for bits in (12, 14, 16):
        name = f"fixed<{bits},5>"
        found = evaluate_fixed(folded(1), images, FixedTypes(name, name, name, tile=3))
        errors.append(np.abs(found - expected).mean())
    assert errors[0] > errors[1] > 2 * errors[2] and errors[2] < 0.005


def test_narrow_fixed_point_rounds_where_the_program_does() -> None:
    """The first depthwise layer and the tiles of a 1 x 1 one, by loops over whole numbers."""
    weights = folded(2)
    images = np.random.default_rng(1).uniform(-2, 2, (1, 3, 8, 8))
    types = FixedTypes(tile=2)
    x = np.rint(rounded(images, types.maps) * 64).astype(int)
    w, b = (rounded(v, types.weights) for v in weights["model_p1.0.0"])

    def nearest(numerator: int, shift: int, low: int, high: int) -> int:
        return min(max((numerator + (1 << shift >> 1)) >> shift, low), high)

    codes = np.zeros((3, 8, 8), dtype=int)
    for c in range(3):
        for y in range(8):
            for z in range(8):
                total = nearest(int(b[c] * 128) * 2, 0, -2048, 2047)
                for i in range(3):
                    for j in range(3):
                        inside = 0 <= y + i - 1 < 8 and 0 <= z + j - 1 < 8
                        tap = x[0, c, y + i - 1, z + j - 1] if inside else 0
                        product = round(w[c, 0, i, j] * 128) * int(tap)  # 2^-13
                        total = nearest((total << 5) + product, 5, -2048, 2047)
                codes[c, y, z] = nearest(min(max(total, 0), 6 * 256), 2, -256, 255)
    w, b = (rounded(v, types.weights) for v in weights["model_p1.0.3"])
    sums = np.rint(b * 256).astype(int)[:, None, None] + np.zeros((4, 8, 8), dtype=int)
    for part in (slice(0, 2), slice(2, 3)):
        products = np.einsum(
            "oi,iyx->oyx", np.rint(w[:, part, 0, 0] * 128).astype(int), codes[part]
        )
        sums = np.clip(((sums << 5) + products + 16) >> 5, -2048, 2047)
    first = np.clip((np.clip(sums, 0, 6 * 256) + 2) >> 2, -256, 255) / 64
    from bitwright.papers.skynet import fixed_point as module

    layers = {k: tuple(rounded(v, types.weights) for v in pair) for k, pair in weights.items()}
    found = module._depthwise(rounded(images, types.maps), *layers["model_p1.0.0"], types)
    assert np.array_equal(found[0] * 64, codes)
    assert np.array_equal(module._pointwise(found, *layers["model_p1.0.3"], types)[0], first)


@pytest.mark.parametrize("tile", [1, 2, 32])
def test_the_graph_has_the_emulation_s_numbers(tile: int) -> None:
    """To the last bundle and the head, to saturation, and of the bundles alone."""
    types = FixedTypes(tile=tile)
    images = np.random.default_rng(4).uniform(-4, 4, (2, 3, 16, 24))
    graph = fixed_graph(folded(5), (16, 24, 3), types)
    (out,) = graph.outputs
    found = graph.run({"image": levels_of(images, types.maps)})[out]
    wanted = evaluate_fixed(folded(5), images, types)
    assert (found == levels_of(wanted, types.sums)).all()
    assert graph.types[out].scale == (parse_format(types.sums).lsb,)
    part = fixed_graph(folded(5), (16, 24, 3), types, 2)
    found = part.run({"image": levels_of(images, types.maps)})[part.outputs[0]]
    assert (found == levels_of(evaluate_fixed(folded(5), images, types, 2), types.maps)).all()
    with pytest.raises(ModelError, match="0 bundles, of 6"):
        fixed_graph(folded(5), (16, 24, 3), types, 0)
    with pytest.raises(ModelError, match="accumulators of fixed<12,8>"):
        fixed_graph(folded(5), (16, 24, 3), FixedTypes(sums="fixed<12,8>"))


def test_every_number_is_of_its_type() -> None:
    found = evaluate_fixed(folded(3), np.full((1, 3, 8, 8), 9.0))
    kind = parse_format("fixed<12,4>")
    codes = found / kind.lsb
    assert np.array_equal(codes, np.rint(codes)) and np.abs(codes).max() <= 2048
    with pytest.raises(ModelError, match="int8 is no fixed point"):
        FixedTypes(maps="int8")


def test_four_images_make_one_picture_and_boxes_find_back() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (160, 320, 3), dtype=np.uint8) for _ in range(4)]
    picture = stitch(images)
    assert picture.shape == (324, 644, 3) and (picture[0] == 127).all()
    assert all(np.array_equal(a, b) for a, b in zip(unstitch(picture), images, strict=True))
    top, left = corner(3, (160, 320))
    box = np.array([left + 32, top + 16, left + 160, top + 80])
    assert box_in_image(box, 3).tolist() == pytest.approx([0.1, 0.1, 0.5, 0.5])
    with pytest.raises(DataError, match="3 images; a picture is made of 4"):
        stitch(images[:3])
