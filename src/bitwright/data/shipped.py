# SPDX-License-Identifier: Apache-2.0
"""A table and a set of signals that need no download: given as arrays, like anybody's own.

`breast_cancer` is the file that scikit-learn carries. `tones` is drawn here: short sounds as a
microphone hears them, of a kind that tells apart what simple keyword spotting does.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.own import Arrays

TONES = ("noise", "low", "high", "rise", "fall", "chord", "warble", "clicks")
LENGTH = 256  # samples of a sound
_ROWS = (569, 31)
_CANCER = ("malignant", "benign")


def breast_cancer() -> Arrays:
    """Wisconsin's breast cancer data (Street, Wolberg, Mangasarian 1993): 569 cases, 30 measures of
    cells in an image of a fine needle aspirate.

    Raises:
        DataError: scikit-learn is not there, or carries another file.
    """
    spec = find_spec("sklearn")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    path = Path(folders[0] if folders else "sklearn", "datasets", "data", "breast_cancer.csv")
    hint = "install scikit-learn again"
    try:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        reason = f"the table of scikit-learn cannot be read: {error}"
        raise DataError(reason, where=str(path), hint=hint) from error
    if rows.shape != _ROWS:
        raise DataError(
            f"expected {_ROWS[0]} rows of {_ROWS[1]} numbers, got {rows.shape}",
            where=str(path),
            hint=hint,
        )
    return Arrays(rows[:, :-1], rows[:, -1].astype(np.int64), _CANCER)


def tones(count: int = 2400, noise: float = 0.25, seed: int = 0) -> Arrays:
    """Sounds of `LENGTH` samples with one channel, in [-1, 1], of eight kinds in turn.

    Each begins at a random time, has a random length, pitch, phase and loudness, and lies in white
    noise. The numbers are those of ``numpy.random.RandomState``, whose stream is frozen.

    Args:
        count: of sounds.
        noise: standard deviation of the noise; the sounds have amplitudes of 0.3 to 0.8.
        seed: of the drawing.
    """
    random = np.random.RandomState(seed)
    labels = np.arange(count) % len(TONES)
    drawn = [_sound(TONES[label], random) for label in labels]
    sounds = np.array(drawn) + noise * random.standard_normal((count, LENGTH))
    return Arrays(np.clip(sounds, -1, 1)[:, None, :].astype(np.float32), labels, TONES)


def _sound(kind: str, random: np.random.RandomState) -> NDArray[np.float64]:
    """One sound, without noise, (LENGTH,)."""
    length = random.randint(LENGTH // 2, 3 * LENGTH // 4)
    start = random.randint(0, LENGTH - length)
    loud, pitch, phase = random.uniform((0.3, 0.9, 0), (0.8, 1.1, 2 * np.pi))
    time = np.arange(length)
    low, high = 0.03 * pitch, 0.15 * pitch  # cycles a sample
    slope = np.linspace(0, 1, length)
    match kind:
        case "noise":
            wave = np.zeros(length)
        case "clicks":
            wave = 1.5 * (time % int(24 / pitch) < 2)
        case "chord":
            wave = 0.6 * (_wave(np.full(length, low), phase) + _wave(np.full(length, high), 0))
        case "warble":
            wave = _wave(np.where(time // int(20 / pitch) % 2 > 0, low, high), phase)
        case "rise" | "fall":
            wave = _wave(low + (high - low) * (slope if kind == "rise" else 1 - slope), phase)
        case _:
            wave = _wave(np.full(length, low if kind == "low" else high), phase)
    sound = np.zeros(LENGTH)
    sound[start : start + length] = loud * np.sin(np.pi * slope) ** 0.5 * wave
    return sound


def _wave(pitch: NDArray[np.float64], phase: float) -> NDArray[np.float64]:
    """A sine whose pitch is given sample by sample."""
    found: NDArray[np.float64] = np.sin(2 * np.pi * np.cumsum(pitch) + phase)
    return found
