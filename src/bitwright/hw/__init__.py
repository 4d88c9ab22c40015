# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> hardware graph of the streaming architecture: blocks, folding, timing, cost."""

from bitwright.hw.blocks import Block, Fold, Port, block_of, blocks_of
from bitwright.hw.cost import Estimate, estimate, graph_resources
from bitwright.hw.dataflow import Dataflow, analyse
from bitwright.hw.describe import LayerRow, describe
from bitwright.hw.dialect import HARDWARE
from bitwright.hw.folding import Folding, NodeFolding, load_folding, parse_folding
from bitwright.hw.macs import MacCost, mac_cost, mac_format
from bitwright.hw.mapping import MapOptions, folding_of, map_graph
from bitwright.hw.options import FillGoal, RateGoal
from bitwright.hw.own import OwnBlock, register_block
from bitwright.hw.search import search_folding
from bitwright.hw.template import template

__all__ = [
    "HARDWARE",
    "Block",
    "Dataflow",
    "Estimate",
    "FillGoal",
    "Fold",
    "Folding",
    "LayerRow",
    "MacCost",
    "MapOptions",
    "NodeFolding",
    "OwnBlock",
    "Port",
    "RateGoal",
    "analyse",
    "block_of",
    "blocks_of",
    "describe",
    "estimate",
    "folding_of",
    "graph_resources",
    "load_folding",
    "mac_cost",
    "mac_format",
    "map_graph",
    "parse_folding",
    "register_block",
    "search_folding",
    "template",
]
