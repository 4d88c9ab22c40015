# SPDX-License-Identifier: Apache-2.0
"""The published DPU: every printed resource table, what fits where, its time, broken files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bitwright.base.errors import RecipeError, TargetError
from bitwright.papers.dpu.architecture import (
    Architecture,
    list_architectures,
    load_architecture,
    plain,
    sizes,
)
from bitwright.papers.dpu.calibration import (
    calibrate,
    calibrated,
    known_networks,
    measured_design,
    residuals,
)
from bitwright.papers.dpu.cycles import (
    array_cycles,
    core_ms,
    images_a_second,
    latency_ms,
    layer_times,
)
from bitwright.papers.dpu.nodes import Kind
from bitwright.papers.dpu.resources import (
    LEAKY_RELU,
    SOFTMAX,
    Board,
    core_resources,
    find_board,
    fit,
    require_fit,
    total_resources,
)
from bitwright.papers.dpu.work import Work, work_from_json

#: Vailakis 2022, tables 6.4 to 6.9, typed from the document once more: PP, ICP, OCP, operations,
#: LUT, registers, BRAM, DSP | high RAM | channel augmentation | depthwise LUT, BRAM, DSP |
#: average pool | low DSP LUT, registers, DSP.
TABLES = {
    "B512": "4 8 8 512 27893 35435 73.5 78 | 89.5 | 3121 | 1734 4 12 | 1507 | 1418 2515 -32",
    "B800": "4 10 10 800 30468 42773 91.5 117 | 109.5 | 2624 | 2293 4.5 15 | 2016 | 1903 4652 -40",
    "B1024": "8 8 8 1024 34471 50763 105.5 154 | 137.5 | 3133 | 2744 4 24 | 1564 | 1445 3069 -64",
    "B1152": "4 12 12 1152 33238 49040 123 164 | 145 | 1744 | 2365 5.5 18 | 2352 | 2550 4762 -48",
    "B1600": "8 10 10 1600 38716 63033 127.5 232|163.5|2476|3392 4.5 30|1862|1978 3520 -80",
    "B2304": "8 12 12 2304 42842 73326 167 326 | 211 | 1710 | 3943 5.5 36 | 2338 | 3457 6219 -96",
    "B3136": "8 14 14 3136 47667 85778 210 436 | 262 | 1946 | 4269 6.5 42 | 2574 | 1661 3900 -112",
    "B4096": "8 16 16 4096 53540 105008 257 562|317.5|1701|4930 7.5 48|3081|2525 7359 -128",
}
ZCU102 = find_board("zcu102")


def printed(size: str) -> list[list[float]]:
    return [[float(number) for number in part.split()] for part in TABLES[size].split("|")]


@pytest.mark.parametrize("size", TABLES)
def test_every_resource_table_is_recomputed(size: str) -> None:
    one = plain(size)
    base, high, augmented, depthwise, pool, low = printed(size)
    parallel = one.parallelism
    triple = [parallel.pixel, parallel.input_channel, parallel.output_channel]
    assert [*triple, parallel.operations] == base[:4]
    start = core_resources(one)
    assert [start.lut, start.ff, start.bram / 2, start.dsp] == base[4:]

    def extra(**options: object) -> list[float]:
        more = core_resources(one.changed(**options)) - start  # type: ignore[arg-type]
        return [more.lut, more.ff, more.bram / 2, more.dsp]

    assert extra(ram_usage="high") == [0, 0, high[0] - base[6], 0]
    assert extra(channel_augmentation=True) == [augmented[0], 0, 0, 0]
    assert extra(depthwise=True) == [depthwise[0], 0, depthwise[1], depthwise[2]]
    assert extra(average_pool=True) == [pool[0], 0, 0, 0]
    assert extra(relu=("relu", "relu6", "leaky_relu")) == [LEAKY_RELU[1], 0, 0, 0]
    assert extra(dsp_usage="low") == [low[0], low[1], 0, low[2]]


def test_sizes_and_files_are_those_of_the_document() -> None:
    assert list(sizes()) == list(TABLES)
    assert {a.name for a in list_architectures()} == {*TABLES, "zcu102"}
    assert (SOFTMAX.lut, SOFTMAX.ff, SOFTMAX.bram / 2, SOFTMAX.dsp) == (9580, 8019, 4, 12)
    assert load_architecture("B4096").gops == pytest.approx(1228.8)
    assert load_architecture("zcu102").gops == pytest.approx(3686.4)


def test_the_prebuilt_design_has_the_printed_utilization() -> None:
    shares = fit(load_architecture("B4096").changed(cores=3), ZCU102).shares
    assert f"{100 * shares['lut']:.2f}" == "58.60"
    assert f"{100 * shares['dsp']:.2f}" == "66.90"
    assert f"{100 * shares['bram']:.2f}" == "84.54"  # printed: 84.45


def test_cores_add_up_and_softmax_is_there_once() -> None:
    one = load_architecture("b1600").changed(softmax=True, depthwise=True)
    single, three = total_resources(one), total_resources(one.changed(cores=3))
    assert three == core_resources(one) * 3 + SOFTMAX
    assert three - single == core_resources(one) * 2


def test_four_devices_have_four_times_the_cores() -> None:
    one = load_architecture("b4096").changed(cores=3)
    quad = fit(one, find_board("qfdb"))
    assert quad.shares == fit(one, ZCU102).shares
    assert quad.cores == 12


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(TargetError) as caught:
        require_fit(load_architecture("b4096"), find_board("ultra96"))
    text = str(caught.value)
    assert "202 DSP blocks too many (562 of 360)" in text
    assert "41 block RAMs of 36 kbit too many (257 of 216)" in text
    assert "1 x B2304" in text
    low = load_architecture("b3136").changed(dsp_usage="low")
    assert require_fit(low, find_board("ultra96")).fits  # 436 DSP slices less 112


def test_nothing_fits_a_small_device() -> None:
    with pytest.raises(TargetError, match="none of the sizes fits"):
        slow = load_architecture("b512").model_dump() | {"clock_mhz": 50.0}
        require_fit(Architecture.model_validate(slow), Board("small", "ice40-up5k"))


def test_a_clock_that_the_device_does_not_carry() -> None:
    fast = Architecture.model_validate(load_architecture("b512").model_dump() | {"clock_mhz": 400})
    with pytest.raises(TargetError, match=r"800 MHz.*775 MHz"):
        fit(fast, ZCU102)
    with pytest.raises(TargetError, match="unknown target"):
        find_board("nowhere")


GOOD = (Path(__file__).parents[2] / "src/bitwright/papers/dpu/architectures/b1024.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cores = 1\n", "", "cores: Field required"),
        ("cores = 1\n", "cores = 5\n", "less than or equal to 4"),
        ("pixel = 8", "pixel = 4", r"B1024 has parallelism \(8, 8, 8\).*\(4, 8, 8\): 512"),
        ('size = "B1024"', 'size = "B1000"', "size 'B1000' is not known; there are B512"),
        ('"relu", "relu6"', '"relu"', "relu must name relu6"),
        ('"relu", "relu6"', '"relu", "relu6", "gelu"', "leaky_relu"),
        ('ram_usage = "low"', 'ram_usage = "none"', "'low' or 'high'"),
        ("depthwise = false", "depthwise = 3", "depthwise"),
        ("[options]", "[options]\nturbo = true", "turbo"),
        ("[parallelism]", "[parallelism", "cannot be read"),
    ],
)
def test_a_broken_file_names_the_field(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(TargetError, match=words) as caught:
        load_architecture(path)
    assert str(path) in str(caught.value)


def test_without_double_rate_there_are_cycles_but_no_resources(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(GOOD.replace("dsp_double_rate = true", "dsp_double_rate = false"))
    slow, works = load_architecture(path), known_networks()["densenet21"]
    with pytest.raises(TargetError, match="double rate"):
        core_resources(slow)
    assert latency_ms(works, slow, calibrated()) > latency_ms(
        works, load_architecture("b1024"), calibrated()
    )


def test_each_of_the_nine_figures_is_within_ten_percent() -> None:
    found = residuals(calibrated(), known_networks())
    assert len(found) == 9
    assert max(abs(row.relative) for row in found) < 0.10


def test_the_constants_of_the_package_are_the_fit() -> None:
    again = calibrate(known_networks())
    for name, value in calibrated().__dict__.items():
        assert getattr(again, name) == pytest.approx(value, rel=1e-3)


def test_the_known_networks_have_the_macs_of_the_document() -> None:
    """Of the modified DenseNets; the original ones of section 3.2 have those of 88.85, 193.19 and
    341.92 million, too."""
    macs = {name: sum(w.macs for w in works) for name, works in known_networks().items()}
    assert [f"{value / 1e6:.2f}" for value in macs.values()] == ["88.85", "193.19", "341.92"]


def test_threads_help_until_the_cores_are_busy() -> None:
    works, one = known_networks()["densenet63"], measured_design()
    rates = [images_a_second(works, one, calibrated(), n) for n in range(1, 9)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1e3 / latency_ms(works, one, calibrated()))
    assert rates[-1] == rates[-2] == pytest.approx(3e3 / core_ms(works, one, calibrated(), 3))
    cores = [images_a_second(works, one.changed(cores=n), calibrated(), 8) for n in (1, 2, 3)]
    assert cores == sorted(cores)
    with pytest.raises(RecipeError, match="one thread or more, got 0"):
        images_a_second(works, one, calibrated(), 0)


def conv(channels: int, outputs: int = 64, side: int = 32, kernel: int = 3) -> Work:
    return Work(
        "c", Kind.CONV, (side, side, channels), (side, side, outputs), (kernel, kernel), 0, 0
    )


def test_channel_augmentation_packs_the_kernels_row() -> None:
    plainly = load_architecture("b4096")
    augmented = plainly.changed(channel_augmentation=True)
    first = conv(3)
    assert array_cycles(first, plainly) == 128 * 9 * 4
    assert array_cycles(first, augmented) == 128 * 3 * 4  # 3 pixels x 3 channels fit into 16
    assert array_cycles(conv(16), augmented) == array_cycles(conv(16), plainly)


def test_depthwise_has_half_the_pixels_in_parallel() -> None:
    one = load_architecture("b4096").changed(depthwise=True)
    depthwise = replace(conv(64), kind=Kind.DEPTHWISE)
    assert array_cycles(depthwise, one) == 32 * 32 // 4 * 9 * (64 // 16)


@pytest.mark.parametrize("size", TABLES)
def test_no_layer_is_faster_than_the_peak(size: str) -> None:
    for works in known_networks().values():
        rows = layer_times(works, plain(size), calibrated())
        assert all(0 <= row.utilization <= 1 for row in rows)
        assert all(
            row.array * sizes()[size].parallelism.operations // 2 >= row.macs for row in rows
        )


def test_work_is_read_back_as_it_was() -> None:
    for work in known_networks()["densenet37"]:
        assert work_from_json(work.to_json()) == work
