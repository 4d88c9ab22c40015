# SPDX-License-Identifier: Apache-2.0
"""Our Keras files loaded by Keras itself: outputs beside ours. Needs Keras 3 (not our dependency).

    pip install keras
    KERAS_BACKEND=torch python benchmarks/keras_exchange.py

For each network: is our own round trip exact, and how far are the outputs of Keras (after
``load_model`` of the ``.h5``, and after ``load_weights`` of the ``.weights.h5``) from torch's.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bitwright.interop.keras.arrays import keras_name
from bitwright.interop.keras.read import load_keras
from bitwright.interop.keras.write import save_keras
from bitwright.interop.network_from_torch import network_of
from bitwright.models import build_model
from bitwright.papers.faces.face_densenet import face_densenet

_IMAGES = 4
_NETWORKS: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("mnist_cnn", (28, 28, 1)),
    ("lenet", (28, 28, 1)),
    ("resnet20", (32, 32, 3)),
    ("mobilenet_cifar", (32, 32, 3)),
    ("densenet21", (32, 32, 3)),
    ("face 1.0", (80, 80, 3)),
    ("face 2.0", (80, 80, 3)),
)


def network(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """A network with batch norms that have seen something."""
    if name.startswith("face"):
        model = face_densenet(shape, blocks=(6,) if name.endswith("1.0") else (6, 12))
    else:
        model = build_model(name, 10, shape)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def main() -> None:
    """Print one line a network."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras  # type: ignore[import-not-found]  # not our dependency

    torch.manual_seed(0)
    print(f"Keras {keras.__version__}, backend {keras.backend.backend()}")
    print("| network | layers in Keras | exact round trip | model | weights |")
    print("|---|---:|---|---:|---:|")
    for name, shape in _NETWORKS:
        model = network(name, shape)
        layers = network_of(model, shape)
        height, width, channels = shape
        x = torch.rand(_IMAGES, channels, height, width)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            whole = save_keras(layers, Path(folder) / "net.h5")
            weights = save_keras(layers, Path(folder) / "net.weights.h5")
            back = load_keras(whole)
            exact = all(
                np.array_equal(values, back[keras_name(layer.name)].arrays[key])
                for layer in layers.layers
                for key, values in layer.arrays.items()
            )
            loaded = keras.models.load_model(whole, compile=False)
            planar, images = model(x).numpy(), x.permute(0, 2, 3, 1).numpy()
            first = np.abs(np.asarray(loaded(images).cpu()) - planar).max()
            loaded.load_weights(weights)
            second = np.abs(np.asarray(loaded(images).cpu()) - planar).max()
        print(f"| {name} | {len(loaded.layers)} | {exact} | {first:.1e} | {second:.1e} |")


if __name__ == "__main__":
    main()
