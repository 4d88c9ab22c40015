# SPDX-License-Identifier: Apache-2.0
"""The published DPU as a platform of `bitwright bench`: points of its calibrated model."""

from __future__ import annotations

from bitwright.base.figures import Source
from bitwright.explore.bench.performance import Point
from bitwright.explore.bench.subject import BenchSubject
from bitwright.explore.bench.sweep import SweepSettings
from bitwright.papers.dpu.calibration import calibrated, measured_design
from bitwright.papers.dpu.compiler import compile_graph
from bitwright.papers.dpu.cycles import core_ms, images_a_second, latency_ms, works_of

NAME = "dpu int8"


def dpu_platform(subject: BenchSubject, settings: SweepSettings) -> tuple[Point, ...]:
    """The prebuilt design of the ZCU102, by threads; a job is one image. Each thread's latency is
    the host's part and that of its core while as many cores are busy as there are threads.

    Raises:
        GraphError: the processor would have to do some of it; see `works_of`.
    """
    design, timing = measured_design(), calibrated()
    works = works_of(compile_graph(subject.graph, design))
    return tuple(
        Point(
            NAME,
            batch=1,
            threads=threads,
            workers=1,
            images=0,
            throughput=images_a_second(works, design, timing, threads),
            latency_ms=latency_ms(works, design, timing)
            if threads == 1
            else timing.host_ms + core_ms(works, design, timing, min(threads, design.cores)),
            source=Source.MODEL,
        )
        for threads in settings.threads
    )
