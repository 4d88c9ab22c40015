# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation: immutable graphs, dialects as tables, an interpreter."""

from bitwright.ir.builder import GraphBuilder, rebuild
from bitwright.ir.dialect import AttrSpec, Dialect, OpSpec, ParamSpec
from bitwright.ir.graph import Graph, print_graph, random_feeds, run, verify
from bitwright.ir.integer import INTEGER
from bitwright.ir.intervals import ChannelRange, DotInterval, dot_interval
from bitwright.ir.node import Attr, IntArray, Node
from bitwright.ir.op_common import window_shape
from bitwright.ir.passes import Pass, compare_graphs, pipeline
from bitwright.ir.text import load_graph, parse_graph, save_graph
from bitwright.ir.types import TensorType, bits_for_interval, parse_type

__all__ = [
    "INTEGER",
    "Attr",
    "AttrSpec",
    "ChannelRange",
    "Dialect",
    "DotInterval",
    "Graph",
    "GraphBuilder",
    "IntArray",
    "Node",
    "OpSpec",
    "ParamSpec",
    "Pass",
    "TensorType",
    "bits_for_interval",
    "compare_graphs",
    "dot_interval",
    "load_graph",
    "parse_graph",
    "parse_type",
    "pipeline",
    "print_graph",
    "random_feeds",
    "rebuild",
    "run",
    "save_graph",
    "verify",
    "window_shape",
]
