# SPDX-License-Identifier: Apache-2.0
"""Parameter points of `stream_window` and `window_parallel`, written from their headers alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.verilator.lib_case import Case, Stamps, Streams, spec


@dataclass(frozen=True)
class WindowShape:
    height: int
    cols: int
    fold: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pixels: int
    groups: int = 1

    @property
    def span(self) -> tuple[int, int]:
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def out(self) -> tuple[int, int]:
        return ((self.height - self.span[0]) // self.stride[0] + 1,
                (self.cols - self.span[1]) // self.stride[1] + 1)  # fmt: skip


def window(name: str, shape: WindowShape, style: int = 0, lines: int = 0) -> Case:
    (kh, kw), (out_h, out_w) = shape.kernel, shape.out
    part = shape.fold // shape.groups

    def reference(x: Streams) -> Streams:
        frames = x["in"].reshape(-1, shape.height, shape.cols, shape.groups, part)
        parts = [
            frames[:, oy * shape.stride[0] + i * shape.dilation[0],
                   ox * shape.stride[1] + j * shape.dilation[1], group]
            for oy in range(out_h) for ox in range(out_w) for group in range(shape.groups)
            for i in range(kh) for j in range(kw)
        ]  # fmt: skip
        return {"out": np.stack(parts, axis=1).reshape(len(frames), -1)}

    parameters = {
        "Height": shape.height, "Cols": shape.cols, "Fold": shape.fold, "DataWidth": 6,
        "Groups": shape.groups, "KernelH": kh, "KernelW": kw,
        "StrideH": shape.stride[0], "StrideW": shape.stride[1],
        "DilationH": shape.dilation[0], "DilationW": shape.dilation[1], "BufPixels": shape.pixels,
        "RamStyle": style, "RamLines": lines,
    }  # fmt: skip
    beats_in = shape.height * shape.cols * shape.fold
    beats_out = out_h * out_w * kh * kw * shape.fold
    interval = int(np.diff(window_stamps(shape, 12)[1].reshape(12, -1)[:, -1])[-1])
    return Case(f"window_{name}", "stream_window", parameters, {"in": spec(1, 6, beats_in)},
                {"out": spec(1, 6, beats_out)}, reference, interval,
                lambda frames: window_stamps(shape, frames))  # fmt: skip


def window_parallel(name: str, shape: WindowShape, bits: int = 3, style: int = 0) -> Case:
    """`shape.fold` channels, all of them in a beat; `shape.pixels` says nothing here."""
    (kh, kw), (out_h, out_w), channels = shape.kernel, shape.out, shape.fold
    part = channels // shape.groups

    def reference(x: Streams) -> Streams:
        frames = x["in"].reshape(-1, shape.height, shape.cols, shape.groups, part)
        parts = [
            frames[:, oy * shape.stride[0] + i * shape.dilation[0],
                   ox * shape.stride[1] + j * shape.dilation[1], group]
            for oy in range(out_h) for ox in range(out_w) for group in range(shape.groups)
            for i in range(kh) for j in range(kw)
        ]  # fmt: skip
        return {"out": np.stack(parts, axis=1).reshape(len(frames), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        pixels = np.arange(frames * shape.height * shape.cols)
        grid = pixels.reshape(frames, shape.height, shape.cols)
        last = grid[:, shape.span[0] - 1 :: shape.stride[0], shape.span[1] - 1 :: shape.stride[1]]
        return pixels, last.ravel() + 3

    parameters = {
        "Height": shape.height, "Cols": shape.cols, "DataWidth": bits * channels,
        "Groups": shape.groups, "KernelH": kh, "KernelW": kw,
        "StrideH": shape.stride[0], "StrideW": shape.stride[1],
        "DilationH": shape.dilation[0], "DilationW": shape.dilation[1], "RamStyle": style,
    }  # fmt: skip
    beats = shape.height * shape.cols
    return Case(f"parallel_{name}", "window_parallel", parameters,
                {"in": spec(channels, bits, beats)},
                {"out": spec(channels * kh * kw, bits, out_h * out_w)}, reference, beats,
                stamps)  # fmt: skip


def window_stamps(shape: WindowShape, frames: int) -> tuple[Stamps, Stamps]:
    """The rule of stream_window's header, cycle by cycle; the sink never stalls."""
    out_h, out_w = shape.out
    per_pixel = shape.kernel[0] * shape.kernel[1] * shape.fold
    span = ((shape.span[0] - 1) * shape.cols + shape.span[1]) * shape.fold
    first = [
        (frame * shape.height + oy * shape.stride[0]) * shape.cols + ox * shape.stride[1]
        for frame in range(frames) for oy in range(out_h) for ox in range(out_w)
    ] + [frames * shape.height * shape.cols]  # fmt: skip
    # The first pixel of a frame is its first one: what is left of the frame before goes then.
    first = [place if i % (out_h * out_w) else i // (out_h * out_w) * shape.height * shape.cols
             for i, place in enumerate(first)]  # fmt: skip
    taken: list[int] = []
    given: list[int] = []
    used = ready = left = pixel = cycle = 0
    pending = 0  # words that leave `used` one cycle after they left `ready`
    beats_in = frames * shape.height * shape.cols * shape.fold
    beats_out = frames * out_h * out_w * per_pixel
    while len(given) < beats_out or len(taken) < beats_in:
        write, drop = 0, 0
        if used < shape.pixels * shape.fold and len(taken) < beats_in:
            taken.append(cycle)
            write = 1
        if left or (ready >= span and len(given) < beats_out):
            left = (left or per_pixel) - 1
            given.append(cycle + 4)
            if left == 0:
                drop = (first[pixel + 1] - first[pixel]) * shape.fold
                pixel += 1
        ready += write - drop
        used += write - pending
        pending = drop
        cycle += 1
    return np.array(taken), np.array(given)


WINDOW_CASES = (
    window("3x3", WindowShape(6, 7, 2, (3, 3), (1, 1), (1, 1), 19)),
    window("stride", WindowShape(7, 6, 1, (2, 3), (2, 2), (1, 1), 15), style=1),
    window("dilated", WindowShape(8, 9, 1, (2, 3), (1, 2), (3, 2), 40)),
    window("skip", WindowShape(7, 5, 3, (1, 1), (3, 2), (1, 1), 3)),
    window("tight", WindowShape(5, 4, 1, (3, 2), (1, 1), (1, 1), 10)),
    window("depthwise", WindowShape(6, 7, 3, (3, 3), (1, 1), (1, 1), 18, groups=3)),
    window("groups", WindowShape(7, 8, 4, (2, 3), (2, 1), (2, 1), 21, groups=2)),
    window("rows", WindowShape(6, 7, 2, (3, 3), (1, 1), (1, 1), 19), style=1, lines=16),
    window("rows_luts", WindowShape(7, 6, 1, (2, 3), (2, 2), (1, 1), 15), style=2, lines=4),
    window_parallel("3x3", WindowShape(6, 7, 2, (3, 3), (1, 1), (1, 1), 0)),
    window_parallel("stride", WindowShape(8, 9, 1, (3, 2), (2, 3), (1, 1), 0), style=1),
    window_parallel("dilated", WindowShape(8, 9, 2, (2, 3), (1, 2), (3, 2), 0), style=2),
    window_parallel("skip", WindowShape(7, 5, 3, (1, 1), (3, 2), (1, 1), 0)),
    window_parallel("column", WindowShape(7, 1, 1, (3, 1), (2, 1), (1, 1), 0)),
    window_parallel("row", WindowShape(1, 9, 4, (1, 3), (1, 1), (1, 2), 0, groups=2)),
    window_parallel("groups", WindowShape(5, 5, 6, (2, 2), (1, 1), (1, 1), 0, groups=3)),
    window("blocks", WindowShape(6, 4, 2, (2, 2), (2, 2), (1, 1), 14)),
)
