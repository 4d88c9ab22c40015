# SPDX-License-Identifier: Apache-2.0
"""Where a run's images come from: one tensor that holds all, or files that are decoded in time.

Both are asked for by position. What a training batch looks like is a function of the run's seed,
the epoch, and the images in it, whichever of the two it is and however many devices share it.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.base.errors import DataError
from bitwright.data import Dataset
from bitwright.data.dataset import Levels, channels_first
from bitwright.data.decoding import RandomCrop
from bitwright.data.image_files import ImageFiles
from bitwright.data.labels import Labels
from bitwright.tasks.moves import still, then
from bitwright.train.config import Augmentation
from bitwright.train.transforms import augment_moving, cut_out, to_real, window_moves

_MEASURED_PIXELS = 500 * 96 * 96  # of a batch that is measured: larger images go in smaller batches
_log = logging.getLogger(__name__)
_Decode = Callable[[int], Levels]
#: What torch computes with; it has next to nothing for uint16.
_HELD = {"uint16": "int32"}


class FileImages:
    """Images in files, for a run: asked for by position as a tensor (N, C, H, W) is.

    ``images[positions]`` decodes at once; `split` and `batches` decode ahead, in threads, while the
    last batch is at work.
    """

    def __init__(
        self, files: ImageFiles, labels: NDArray[np.int64], device: torch.device | str
    ) -> None:
        self.files = files
        self.device = torch.device(device)
        self._labels = labels
        self._replaced: set[int] = set()
        self._damaged: set[int] = set()  # tried for others, not named yet

    def __len__(self) -> int:
        return len(self.files)

    def to(self, device: torch.device | str) -> FileImages:
        """The same images for another device."""
        return FileImages(self.files, self._labels, device)

    def __getitem__(self, positions: Tensor | slice) -> Tensor:
        """The middles of images, decoded at once.

        Raises:
            DataError: a file is damaged.
        """
        every = np.arange(len(self), dtype=np.int64)
        chosen = every[positions if isinstance(positions, slice) else positions.cpu().numpy()]
        return next(self._decoded([chosen], self.files.window))

    def split(self, size: int) -> Iterator[Tensor]:
        """Every image, its middle, in batches of at most ``size``: to be measured.

        Raises:
            DataError: a file is damaged; nothing takes its place.
        """
        _, height, width, _ = self.files.shape
        size = max(1, min(size, _MEASURED_PIXELS // (height * width)))
        every = np.arange(len(self), dtype=np.int64)
        return self._decoded(
            (every[start : start + size] for start in range(0, len(self), size)), self.files.window
        )

    def batches(
        self, parts: Iterable[Tensor], crop: RandomCrop | None, indices: NDArray[np.int64]
    ) -> Iterator[Tensor]:
        """The images of each part, to be trained on.

        Args:
            parts: positions of the images of each batch.
            crop: take random windows.
            indices: (N,) the numbers by which the windows are drawn.

        Raises:
            DataError: a file is damaged, and none may take its place.
        """

        def window(position: int) -> Levels:
            return self.files.window(position, crop, int(indices[position]))

        def decode(position: int) -> Levels:
            try:
                return window(position)
            except DataError as error:
                if not self.files.skips:
                    raise
                return self._instead(position, error, window)

        return self._decoded((part.cpu().numpy() for part in parts), decode)

    def _instead(self, position: int, error: DataError, window: _Decode) -> Levels:
        """The next image of the class that can be decoded; what is damaged is named once, and is
        tried for another one once.
        """
        if position not in self._replaced:
            self._replaced.add(position)
            _log.warning("%s: another image of its class takes its place in training", error)
        members = np.flatnonzero(self._labels == self._labels[position])
        at = int(np.searchsorted(members, position))
        for other in map(int, np.roll(members, -at - 1)[:-1]):
            if other in self._damaged or other in self._replaced:
                continue
            try:
                return window(other)
            except DataError:  # named when its own turn comes
                self._damaged.add(other)
        raise DataError(
            f"{error.message}, and so do all other images of its class",
            where=error.where,
            hint=error.hint,
        )

    def _decoded(self, parts: Iterable[NDArray[np.int64]], decode: _Decode) -> Iterator[Tensor]:
        """Batches in order, ``ahead`` of them already at work in the background."""
        waiting: deque[list[Future[Levels]]] = deque()
        left = iter(parts)
        with ThreadPoolExecutor(self.files.threads, "decode") as pool:
            try:
                while True:
                    for part in itertools.islice(left, self.files.ahead + 1 - len(waiting)):
                        waiting.append([pool.submit(decode, int(position)) for position in part])
                    if not waiting:
                        return
                    yield self._joined(waiting.popleft())
            finally:  # an error, or nobody wants the rest
                pool.shutdown(wait=False, cancel_futures=True)

    def _joined(self, futures: Sequence[Future[Levels]]) -> Tensor:
        _, height, width, channels = self.files.shape
        on_gpu = self.device.type == "cuda"
        held = torch.int32 if self.files.dtype == np.uint16 else torch.uint8
        batch = torch.empty((len(futures), channels, height, width), dtype=held)
        if on_gpu:
            batch = batch.pin_memory()
        for row, future in zip(batch.numpy(), futures, strict=True):
            row[:] = future.result().transpose(2, 0, 1)
        return batch.to(self.device, non_blocking=on_gpu)


Images = Tensor | FileImages
"""All images (N, C, H, W), signals (N, C, L) or rows (N, F) of a split, by position."""


def label_tensor(labels: Labels) -> Tensor:
    """Labels as torch takes them: classes as int64, whatever whole numbers they are."""
    found = torch.tensor(labels)
    return found if found.is_floating_point() else found.to(torch.int64)


def on_device(dataset: Dataset, device: torch.device | str) -> tuple[Images, Tensor]:
    """Inputs (N, C, ...), in one tensor or in their files, and labels (N, ...)."""
    labels = label_tensor(dataset.labels).to(device)
    if isinstance(dataset.images, ImageFiles):
        groups = dataset.kind.groups(dataset.labels)
        return FileImages(dataset.images, groups, device), labels
    planar = channels_first(dataset.images)
    held = planar.astype(_HELD.get(planar.dtype.name, planar.dtype), copy=False)
    return torch.from_numpy(held).to(device), labels


@dataclass(frozen=True, eq=False)
class Feed:
    """What the batches of one epoch are made of.

    Attributes:
        images: all training images; ``scale`` makes reals of their pixels.
        indices: (N,) their numbers in the source, by which windows are drawn.
        augmentation: random changes.
        share: the part of each batch that this process trains on.
        seed, epoch: of the run.
    """

    images: Images
    indices: NDArray[np.int64]
    scale: float
    augmentation: Augmentation
    share: slice
    seed: int
    epoch: int

    def batches(
        self, parts: Sequence[Tensor], generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of each batch, as training sees it: images (n, C, H, W), float32,
        and where their points have gone, (n, 2, 3) (`tasks.moves`).

        Args:
            parts: positions of the images of each whole batch.
            generator: of what is drawn batch by batch.

        Raises:
            DataError: a file is damaged.
        """
        smallest = self.augmentation.random_resized_crop
        crop = None if smallest is None else RandomCrop(smallest, self.seed, self.epoch)
        shares = [part[self.share] for part in parts]
        ready: Iterable[tuple[Tensor, Tensor]]
        if isinstance(self.images, Tensor):
            ready = (self._from_memory(self.images, share, crop) for share in shares)
        else:  # only classes are known of images in files, and those stay
            ready = (
                (to_real(batch, self.scale), still(len(batch), batch.device))
                for batch in self.images.batches(shares, crop, self.indices)
            )
        for part, (reals, cut) in zip(parts, ready, strict=True):
            how = self.augmentation
            found, moves = augment_moving(reals, how, generator, whole=len(part), share=self.share)
            yield found, then(cut, moves)

    def _from_memory(
        self, images: Tensor, share: Tensor, crop: RandomCrop | None
    ) -> tuple[Tensor, Tensor]:
        reals = to_real(images[share], self.scale)
        if crop is None:
            return reals, still(len(reals), reals.device)
        height, width = images.shape[2:]
        chosen = self.indices[share.cpu().numpy()].tolist()
        found = [crop.window(width, height, (height, width), index) for index in chosen]
        windows = torch.tensor(found, dtype=torch.float32)
        return cut_out(reals, windows), window_moves(windows, reals)
