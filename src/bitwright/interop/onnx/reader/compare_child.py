# SPDX-License-Identifier: Apache-2.0
"""Run by itself: an ONNX file and images -> its outputs, by QONNX's executor; see `compare`.

ONNX Runtime is a large library in C++ that gets a stranger's file here: what it takes, and whether
it crashes, costs a process of its own and nothing else. Nothing of ours is imported.

    python compare_child.py FILE.onnx IMAGES.npy FOLDER BATCH MEMORY SECONDS

FOLDER gets 0.npy, 1.npy ..
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_LIMITS = runpy.run_path(str(Path(__file__).parents[3] / "base" / "tools" / "confine.py"))
_ERRORS = 3


class Runner:
    """The file, for batches of any size."""

    def __init__(self, body: bytes) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when its library is loaded
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        onnxruntime.set_default_logger_severity(_ERRORS)
        import onnx
        from onnx.helper import tensor_dtype_to_np_dtype
        from qonnx.core import onnx_exec
        from qonnx.core.modelwrapper import ModelWrapper
        from qonnx.transformation.infer_shapes import InferShapes

        self._body, self._onnx, self._type = body, onnx, tensor_dtype_to_np_dtype
        self._execute, self._wrap, self._infer = onnx_exec.execute_onnx, ModelWrapper, InferShapes

    @property
    def batch(self) -> int:
        """Images that the file is written for; 1 where it does not say."""
        model = self._onnx.ModelProto.FromString(self._body)
        (entry,) = model.graph.input
        dims = entry.type.tensor_type.shape.dim
        return max(1, dims[0].dim_value) if dims else 1

    def run(self, part: Any, *, as_written: bool) -> list[Any]:
        """All outputs; with the batch size of the file, or that of the part."""
        model = self._onnx.ModelProto.FromString(self._body)
        (entry,) = model.graph.input
        names = [output.name for output in model.graph.output]
        for place in reversed(range(len(names))):
            if names[place] in names[:place]:  # QONNX knows no output that stands there twice
                del model.graph.output[place]
        if not as_written:
            for info in (entry, *model.graph.output):
                if info.type.tensor_type.shape.dim:  # a file need not say the shape of its output
                    info.type.tensor_type.shape.dim[0].dim_value = len(part)
            del model.graph.value_info[:]
        with warnings.catch_warnings():
            # It complains of every tensor whose size follows the new batch.
            warnings.simplefilter("ignore")
            wrapped = self._wrap(model).transform(self._infer())
            kind = self._type(entry.type.tensor_type.elem_type)
            values = self._execute(wrapped, {entry.name: part.astype(kind)})
        return [np.asarray(values[name]) for name in names]


def chunks(images: Any, batch: int) -> Iterator[Any]:
    """Some images at a time."""
    for start in range(0, len(images), batch):
        yield images[start : start + batch]


def as_written(runner: Runner, images: Any) -> list[Any]:
    """Of as many images as the file is written for; of fewer, the last one fills up the rest."""
    missing = runner.batch - len(images)
    if not missing:
        return runner.run(images, as_written=True)
    filled = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
    return [values[: len(images)] for values in runner.run(filled, as_written=True)]


def outputs(runner: Runner, images: Any, batch: int) -> list[Any]:
    """Of all images."""
    parts = []
    for part in chunks(images, batch):
        try:
            found = runner.run(part, as_written=False)
            if any(values.shape[:1] != (len(part),) for values in found):
                raise ValueError("an operator has the file's own batch size")
            parts.append(found)
        except MemoryError:
            raise
        except Exception:  # a Reshape or Resize to the file's own batch, say: as it is written
            parts += [as_written(runner, some) for some in chunks(part, runner.batch)]
    return [np.concatenate(found) for found in zip(*parts, strict=True)]


def main() -> None:
    """Read, run, write; what is wrong goes to standard error in one line."""
    source, images, target, batch, memory, seconds = sys.argv[1:]
    with _LIMITS["blaming_the_file"]():
        runner = Runner(Path(source).read_bytes())
        _LIMITS["confine"](int(memory), int(seconds))
        given = np.load(images, mmap_mode="r", allow_pickle=False)
        for number, found in enumerate(outputs(runner, given, int(batch))):
            np.save(Path(target) / f"{number}.npy", found)


if __name__ == "__main__":
    main()
