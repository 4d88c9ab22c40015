# SPDX-License-Identifier: Apache-2.0
"""Lesson 6: a network that is too large: weights from outside, or several devices.

A network with random weights is written down as an integer graph; all figures are the models'.
With Verilator each of these designs is also simulated: see ``docs/large-networks.md``.
"""

import numpy as np

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw import FillGoal, MapOptions, analyse, graph_resources, map_graph, search_folding
from bitwright.hw.devices import partition
from bitwright.hw.external import Outside, WeightMemory
from bitwright.hw.weight_image import memory_plan
from bitwright.ir import INTEGER, GraphBuilder, TensorType, random_feeds

CLOCK = 50e6
DEVICE = Resources(lut=6000, ff=8000, dsp=0, bram=24)

rng = np.random.default_rng(0)
uint4 = parse_format("uint4")
net = GraphBuilder("wide", INTEGER)
edge = net.input("x", TensorType((256,), uint4, (1.0,), 0, 15))
for number, (rows, columns) in enumerate([(256, 256), (256, 256), (10, 256)]):
    weights = {"weight": rng.integers(-7, 8, (rows, columns))}
    form = {"weight_format": "int4n", "weight_scale": (1.0,)}
    edge = net.add("dense", (edge,), name=f"fc{number}", attrs=form, params=weights)
    if rows == 256:
        steps = np.sort(rng.integers(-500, 1500, (rows, 15)), axis=1)
        form = {"base": 0, "step": 1, "format": "uint4", "scale": (1.0,)}
        edge = net.add(
            "threshold", (edge,), name=f"act{number}", attrs=form, params={"thresholds": steps}
        )
graph = net.finish(edge)

try:
    search_folding(graph, FillGoal(DEVICE), family="ecp5")
except TargetError as error:
    print(f"one device: {error}\n")

memory = WeightMemory.with_bandwidth(gbytes_per_s=0.2, clock_hz=CLOCK)
outside = Outside(("fc0", "fc1"), memory)
folding = search_folding(graph, FillGoal(DEVICE), family="ecp5", outside=outside)
hardware = map_graph(graph, folding, MapOptions("ecp5", memory=memory))
plan = memory_plan(hardware)
assert plan is not None
flow, used = analyse(hardware), graph_resources(hardware, "ecp5")
figures = plan.bandwidth(flow.interval, CLOCK)
print(f"weights outside: {flow.interval} cycles a frame, {used.lut:.0f} LUTs, {used.bram:.0f} BRAM")
print(f"  {figures['bytes_per_frame']} bytes a frame, {figures['gbytes_per_s']:.3f} GB/s\n")

for devices in (2, 3):
    parts = partition(graph, DEVICE, family="ecp5", devices=devices)
    rate = CLOCK / parts.interval
    print(f"{devices} devices: {parts.interval} cycles a frame, {rate:,.0f} frames/s")
    for number, cost in enumerate(parts.resources("ecp5")):
        print(f"  part {number}: {cost.lut:.0f} LUTs, {cost.bram:.0f} BRAM")
    for link in parts.links:
        speed = link.bits_per_s(parts.interval, CLOCK) / 1e6
        print(f"  link {link.edge}, {link.source} -> {link.target}: {speed:.0f} Mbit/s")

feeds = random_feeds(graph, 4, rng)
for design in (hardware, parts):
    assert (design.run(feeds)[edge] == graph.run(feeds)[edge]).all(), "all give the same integers"
