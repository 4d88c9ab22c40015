# SPDX-License-Identifier: Apache-2.0
"""The search finds the optimum (compared with trying everything) and says what is short."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace

import numpy as np
import pytest
from tests.hw_networks import Net, densenet, digits_like, mlp, skynet

from bitwright.base.errors import RecipeError, TargetError
from bitwright.base.figures import Resources
from bitwright.hw import (
    FillGoal,
    Folding,
    NodeFolding,
    RateGoal,
    analyse,
    graph_resources,
    map_graph,
    search,
    search_folding,
    template,
)
from bitwright.hw.blocks import blocks_of
from bitwright.hw.cost import coefficients
from bitwright.hw.options import Problem, options_of
from bitwright.hw.search import memory_styles
from bitwright.hw.solver import FoldingModel, Link, Option, nodes_for
from bitwright.ir import Graph, rebuild

CLOCK = 100e6


def _small() -> Graph:
    return Net((4, 4, 2), "uint2", "int2n").conv(2, 3).threshold().flatten().dense(2).finish()


def _choices(problem: Problem) -> list[tuple[int, Resources]]:
    """(interval, cost) of every choice of one option per block, converters included."""
    found = []
    names = list(problem.options)
    for chosen in itertools.product(*problem.options.values()):
        picked = dict(zip(names, chosen, strict=True))
        interval = max(option.interval for option in chosen)
        cost = Resources()
        for option in chosen:
            cost = cost + option.cost
        for link in problem.links:
            pair = link.ends(picked)
            if pair[0] != pair[1]:
                converter = link.converters[pair]
                assert converter is not None
                interval, cost = max(interval, converter[0]), cost + converter[1]
        found.append((interval, cost))
    return found


def _outcome(problem: Problem, chosen: dict[str, Option]) -> tuple[int, Resources]:
    single = {name: [option] for name, option in chosen.items()}
    return _choices(_Fixed(problem, single))[0]


class _Fixed(Problem):
    """A problem with one option per block."""

    def __init__(self, problem: Problem, options: dict[str, list[Option]]) -> None:
        self.hardware, self.family = problem.hardware, problem.family
        self.options, self.links = options, problem.links


def _thinned(problem: Problem, seed: int) -> Problem:
    """At most four options per block, so that all products can be tried."""
    rng = np.random.default_rng(seed)
    options = {
        name: [found[i] for i in sorted(rng.permutation(len(found))[:4])]
        for name, found in problem.options.items()
    }
    return _Fixed(problem, options)


def _residual() -> Graph:
    net = Net((3, 3, 2), "uint2", "int2n").conv(2, 1).threshold()
    before = net.edge
    return net.conv(2, 1).threshold().add(before).threshold().finish(label=False)


def _branches() -> Graph:
    """The input itself is read twice."""
    net = Net((3, 3, 2), "uint2", "int2n")
    first = net.conv(4, 1).threshold().edge
    return net.at("x").conv(2, 1).threshold().concat(first).finish(label=False)


NETWORKS = {"chain": _small, "residual": _residual, "branches": _branches}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("network", NETWORKS)
def test_fastest_within_a_budget_is_the_fastest_of_all(network: str, seed: int) -> None:
    problem = _thinned(Problem(template(NETWORKS[network]()), "ecp5"), seed)
    every = _choices(problem)
    for share in (1.05, 1.3, 2.0):
        least = min(cost.lut for _, cost in every)
        limit = Resources(lut=least * share, ff=1e6, dsp=4, bram=6)
        legal = [
            interval
            for interval, cost in every
            if all(getattr(cost, k) <= getattr(limit, k) + 0.01 for k in limit.to_json())
        ]
        cycles = problem.fastest(limit)
        if not legal:
            assert cycles is None
            continue
        assert cycles is not None
        chosen = problem.cheapest(limit, cycles)
        assert chosen is not None
        interval, cost = _outcome(problem, chosen)
        assert cost.lut <= limit.lut + 0.01
        assert cost.to_json() == problem.cost(chosen).to_json()
        # Costs are rounded up to sixteenths in the model, so only a tight budget may differ.
        assert interval == cycles == min(legal)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("network", NETWORKS)
def test_cheapest_at_a_rate_is_the_cheapest_of_all(network: str, seed: int) -> None:
    problem = _thinned(Problem(template(NETWORKS[network]()), "ecp5"), seed)
    every = _choices(problem)
    intervals = sorted({interval for interval, _ in every})

    def worth(cost: Resources) -> float:
        return cost.lut + 0.1 * cost.ff + 150 * cost.dsp + 200 * cost.bram

    for most in intervals[:: max(1, len(intervals) // 4)]:
        chosen = FoldingModel(problem.options, problem.links, most).smallest()
        assert chosen is not None
        interval, cost = _outcome(problem, chosen)
        assert interval <= most
        best = min(worth(c) for i, c in every if i <= most)
        assert worth(cost) <= best + 1.0  # costs are counted in sixteenths


@pytest.mark.parametrize("fps", [10_000, 150_000, 400_000, 1_000_000])
def test_design_reaches_the_rate(fps: int) -> None:
    graph = digits_like()
    folding = search_folding(graph, RateGoal(fps, CLOCK), family="ecp5")
    assert analyse(map_graph(graph, folding)).interval <= CLOCK / fps


def test_more_speed_costs_more_and_less_budget_is_slower() -> None:
    graph = mlp("uint4", "int4n")
    costs, speeds = [], []
    for fps in (100_000, 1_000_000, 5_000_000):
        folding = search_folding(graph, RateGoal(fps, CLOCK), family="ecp5")
        costs.append(graph_resources(map_graph(graph, folding), "ecp5").lut)
    for luts in (1500, 3000, 20_000):
        budget = Resources(lut=luts, ff=50_000, dsp=0, bram=20)
        hardware = map_graph(graph, search_folding(graph, FillGoal(budget), family="ecp5"))
        used = graph_resources(hardware, "ecp5")
        assert used.lut <= budget.lut and used.bram <= budget.bram and used.dsp == 0
        speeds.append(analyse(hardware).interval)
    assert costs == sorted(costs) and speeds == sorted(speeds, reverse=True)
    assert len(set(costs)) == len(set(speeds)) == 3


def _random_network(seed: int) -> Graph:
    """Two to four layers on a few pixels; what one gives, others may add or take beside."""
    rng = np.random.default_rng(seed)
    net = Net((int(rng.integers(1, 4)), 2, 2), "uint2", "int2n", seed)
    edges = [net.edge]
    for _ in range(int(rng.integers(2, 4))):
        if rng.random() < 0.7 and len(edges) > 1:
            other = edges[int(rng.integers(len(edges)))]
            if other != net.edge:
                kinds = net.builder.types[net.edge], net.builder.types[other]
                same = kinds[0].shape == kinds[1].shape
                net = net.add(other).threshold() if same else net.concat(other)
        net.conv(int(rng.choice([2, 3, 4])), 1).threshold()
        edges.append(net.edge)
    return net.finish(label=False)


@pytest.mark.parametrize("network", ["residual", "branches"])
def test_what_is_mapped_is_as_fast_as_the_fastest_of_all_foldings(network: str) -> None:
    assert_as_fast_as_any_folding(NETWORKS[network](), least=50)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_networks_are_as_fast_as_with_any_folding(seed: int) -> None:
    assert_as_fast_as_any_folding(_random_network(seed))


def assert_as_fast_as_any_folding(graph: Graph, least: int = 2) -> None:
    """Every folding is mapped, FIFOs and all; none within the budget is faster."""
    problem = Problem(template(graph), "ecp5")
    # One kind of memory each: the other gives the same times.
    options = {name: _one_a_fold(found) for name, found in problem.options.items()}
    every = []
    for chosen in itertools.islice(itertools.product(*options.values()), 3000):
        nodes = {
            name: NodeFolding.from_attrs(option.attrs)
            for name, option in zip(options, chosen, strict=True)
        }
        try:
            hardware = map_graph(graph, Folding(nodes))
        except RecipeError:  # no converter there
            continue
        every.append((analyse(hardware).interval, graph_resources(hardware, "ecp5")))
    assert len(every) >= least
    luts = sorted(used.lut for _, used in every)
    for lut in (luts[0], luts[1], luts[len(luts) // 4], luts[len(luts) // 2], luts[-1]):
        budget = Resources(lut=lut, ff=1e6, dsp=0, bram=10)
        best = min(interval for interval, used in every if used.fits(budget))
        hardware = map_graph(graph, search_folding(graph, FillGoal(budget), family="ecp5"))
        assert graph_resources(hardware, "ecp5").fits(budget)
        assert analyse(hardware).interval <= best, (lut, best)


def _one_a_fold(options: list[Option]) -> list[Option]:
    folds = {
        tuple(item for item in sorted(option.attrs.items()) if item[0] != "ram_style"): option
        for option in options
        if option.cost.dsp == 0
    }
    return list(folds.values())


def test_the_same_problem_gives_the_same_folding() -> None:
    graph, goal = digits_like(), FillGoal(Resources(5000, 9000, 8, 8))
    first = search_folding(graph, goal, family="ecp5")
    assert search_folding(graph, goal, family="ecp5") == first


def test_a_search_ends_after_so_much_has_been_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: what was found until then, at least the smallest design, is given."""
    graph, budget = digits_like(), Resources(3000, 9000, 8, 4)
    mapped: list[Folding] = []

    def counted(graph: Graph, folding: Folding, options: object) -> Graph:
        mapped.append(folding)
        return map_graph(graph, folding, options)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "map_graph", counted)
    whole = search_folding(graph, FillGoal(budget), family="ecp5")
    tries = len(mapped)
    monkeypatch.setattr(search, "_MOST_MAPPED", 1)
    mapped.clear()
    early = search_folding(graph, FillGoal(budget), family="ecp5")
    assert 0 < len(mapped) < tries
    intervals = [analyse(map_graph(graph, folding)).interval for folding in (whole, early)]
    assert intervals[0] <= intervals[1]
    assert graph_resources(map_graph(graph, early), "ecp5").fits(budget)
    assert search_folding(graph, FillGoal(budget), family="ecp5") == early


def test_networks_of_very_many_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_BLOCKS", 3)
    with pytest.raises(TargetError, match="blocks; a folding is searched for at most 3"):
        search_folding(digits_like(), FillGoal(Resources(5000, 9000, 8, 8)), family="ecp5")


def test_the_solver_looks_at_fewer_nodes_of_larger_problems() -> None:
    assert [nodes_for(columns) for columns in (7_000, 80_000, 10**9)] == [400, 100, 1]


def test_unreachable_rate_names_the_block_and_the_rate_that_can_be_reached() -> None:
    # A pixel of the padded image a cycle, however fast all that is behind it.
    with pytest.raises(TargetError, match="needs 100 with as many lanes") as caught:
        search_folding(digits_like(), RateGoal(2e6, CLOCK), family="ecp5")
    assert caught.value.where == "conv_pad"
    assert "1000000 frames a second" in str(caught.value.hint)


def test_too_small_budget_says_what_is_short() -> None:
    short = r"LUTs: about \d+ needed at least, 200 allowed, \d+ short"
    with pytest.raises(TargetError, match=short):
        search_folding(digits_like(), FillGoal(Resources(200, 9999, 8, 8)), family="ecp5")
    goal = RateGoal(100_000, CLOCK, limit=Resources(300, 9999, 8, 8))
    with pytest.raises(TargetError, match="LUTs: about"):
        search_folding(digits_like(), goal, family="ecp5")


def test_what_is_needed_at_least_is_what_the_search_can_do_with() -> None:
    """FIFOs make another design the smallest than that of the least blocks. Its bound, 1500 LUTs of
    a model whose streams between blocks (here 16) saved 17.62 each, moves with what they save now.
    """
    saved = coefficients()["families"]["ecp5"]["link"]["lut"]
    bound = 1500 + 16 * (17.62 - saved)

    def search(luts: float) -> Folding:
        limit = Resources(luts, 2600, 0, 4)
        return search_folding(digits_like(), FillGoal(limit), family="ecp5")

    with pytest.raises(TargetError, match=r"LUTs: about (\d+) needed at least") as caught:
        search(1300)
    needed = int(caught.value.message.split("about ")[1].split(" ")[0])
    assert needed <= bound
    for luts in (needed + 1, bound):
        assert graph_resources(map_graph(digits_like(), search(luts)), "ecp5").lut <= luts


def test_options_are_legal_and_none_is_worse_than_another() -> None:
    for block in blocks_of(template(digits_like())).values():
        options = options_of(block, "ecp5")
        assert options
        for one, other in itertools.permutations(options, 2):
            same = (one.lanes_in, one.lanes_out) == (other.lanes_in, other.lanes_out)
            worse = one.interval >= other.interval and all(
                getattr(one.cost, k) >= getattr(other.cost, k) for k in one.cost.to_json()
            )
            assert not (same and worse)


@pytest.mark.parametrize("cycles", [60, 160, 460, 2000])
def test_depthwise_units_are_parallel_where_the_rate_asks_for_it(cycles: int) -> None:
    """18 channels, 9 pixels of a window: two channels of a parallel unit have the lanes of a serial
    window's beat, whose elements come in another order.
    """
    graph = Net((5, 5, 18), "uint4", "int4n").depthwise().threshold().finish(label=False)
    folding = search_folding(graph, RateGoal(CLOCK / cycles, CLOCK), family="ecp5")
    hardware = map_graph(graph, folding)
    assert analyse(hardware).interval <= cycles
    parallel = hardware.node("dw").integer("simd") == 9
    assert parallel == (hardware.node("dw_window").integer("parallel_window") == 1)
    if cycles < 25 * 9:  # the beats of a serial window
        assert parallel


def test_a_converter_is_paid_for_where_lanes_differ() -> None:
    cheap, dear = Resources(lut=10), Resources(lut=14)
    options = {
        "a": [Option({"pe": 1}, 1, 1, 10, cheap), Option({"pe": 2}, 2, 2, 5, dear)],
        "b": [Option({"pe": 2}, 2, 2, 5, cheap)],
    }
    link = Link("a", "b", {((1, False), (2, False)): (10, Resources(lut=9))})
    chosen = FoldingModel(options, [link], 10).smallest()
    assert chosen is not None and chosen["a"].lanes_out == 2
    free = Link("a", "b", {((1, False), (2, False)): (10, Resources(lut=1))})
    chosen = FoldingModel(options, [free], 10).smallest()
    assert chosen is not None and chosen["a"].lanes_out == 1


def test_the_search_leaves_ctrl_c_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    search_folding(digits_like(), RateGoal(1000, 100e6), family="ecp5")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.long
def test_every_budget_above_the_smallest_design_is_filled() -> None:
    """Near the least that is needed FIFOs decide; the smallest design is then the answer."""
    graph = densenet(size=4)
    with pytest.raises(TargetError, match=r"LUTs: about (\d+) needed at least") as caught:
        search_folding(graph, FillGoal(Resources(100, 1e6, 40, 30)), family="ecp5")
    needed = float(caught.value.message.split("about ")[1].split(" ")[0])
    speeds = []
    for share in (1.01, 1.1, 1.4):
        budget = Resources(lut=needed * share, ff=1e6, dsp=40, bram=30)
        hardware = map_graph(graph, search_folding(graph, FillGoal(budget), family="ecp5"))
        used = graph_resources(hardware, "ecp5")
        assert used.lut <= budget.lut and used.bram <= budget.bram
        speeds.append(analyse(hardware).interval)
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.long
def test_memories_change_over_where_one_kind_is_short() -> None:
    graph = skynet(16, 32, 4, requant=True)
    hardware = map_graph(graph, search_folding(graph, RateGoal(100, 1e7), family="ecp5"))
    used = graph_resources(hardware, "ecp5")
    assert used.bram > 6
    limit = Resources(lut=used.lut + 4000, ff=1e6, dsp=40, bram=used.bram - 4)
    styles = memory_styles(hardware, "ecp5", limit)
    assert set(styles.values()) == {"distributed"}
    assert all(hardware.node(name).string("ram_style") == "block" for name in styles)
    # No more of them than needed.
    nodes = [
        replace(n, attrs={**n.attrs, "ram_style": styles[n.name]}) if n.name in styles else n
        for n in hardware
    ]
    changed = graph_resources(rebuild(hardware, tuple(nodes)), "ecp5")
    assert changed.bram <= limit.bram and changed.lut <= limit.lut
    goal = RateGoal(100, 1e7, limit=limit)
    found = map_graph(graph, search_folding(graph, goal, family="ecp5"))
    used = graph_resources(found, "ecp5")
    assert used.bram <= limit.bram and used.lut <= limit.lut


def test_depthwise_units_and_windows_are_chosen_together() -> None:
    graph = skynet(16, 24, 8)
    hardware = map_graph(graph, search_folding(graph, RateGoal(1e4, 1e8), family="ecp5"))
    for block in blocks_of(hardware).values():
        if block.node.op == "depthwise":
            producer = hardware.producer(block.node.inputs[0])
            assert producer is not None and producer.op in ("window", "fifo")
    assert analyse(hardware).interval <= 1e4
