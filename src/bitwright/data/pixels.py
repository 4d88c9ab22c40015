# SPDX-License-Identifier: Apache-2.0
"""A picture, however its file holds it, as levels of 8 or 16 bits, of one or three channels.

What each kind of picture becomes is the table of ``docs/images.md``. Nothing is guessed: a picture
whose numbers have no range that is known, or whose colours nobody sees, is refused with words.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Levels = NDArray[np.uint8] | NDArray[np.uint16]
"""Pixels as integers: 255 or 65535 is full brightness."""

BITS = (8, 16)
TOP = {8: 255, 16: 65535}
"""The largest level of so many bits."""

_GREY = frozenset({"1", "L", "LA", "La", "F"})
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_PALETTE = frozenset({"P", "PA"})
_PER_LEVEL = TOP[16] // TOP[8]  # levels of 16 bits to one of 8
#: A data set most of whose values are one level was usually destroyed on the way here: ink on paper
#: and digits on black leave more than this.
_MOST_ONE = 0.95
_MOST_CONSTANT = 0.5
_LOOKED_AT = 1 << 22  # values
_log = logging.getLogger(__name__)


def top_of(levels: Levels) -> int:
    """The largest level of pixels in an array of such a type."""
    return TOP[8 * levels.dtype.itemsize]


def is_grey(image: Picture) -> bool:
    """Whether a picture has one channel: grey of any depth, or a palette of greys alone. Its header
    is enough to tell.
    """
    if image.mode in _PALETTE:
        colours = np.array(image.getpalette("RGB") or (0, 0, 1), dtype=np.uint8).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in _GREY or image.mode.startswith("I")


def is_deep_colour(image: Picture) -> bool:
    """Whether a picture that is not loaded yet has 16 bits in each of several channels. Of these
    Pillow gives the upper eight.
    """
    if is_grey(image) and image.mode not in _ALPHA:
        return False
    given = [part for tile in image.tile for part in _parts(tile[3])]
    return any(";16" in part if isinstance(part, str) else part > TOP[8] for part in given)


def _parts(args: Any) -> list[str | int]:
    """The raw mode among a decoder's arguments; of plain PNM files the largest value, too."""
    if isinstance(args, str):
        return [args]
    if not isinstance(args, tuple):
        return []
    is_pnm = len(args) == 2 and all(
        isinstance(a, kind) for a, kind in zip(args, (str, int), strict=True)
    )
    return list(args) if is_pnm else [part for part in args if isinstance(part, str)]


def readable(image: Picture, grey: bool | None, where: str) -> Picture:
    """The picture in one of the three modes that are resized: ``L`` and ``RGB``, and for grey of 16
    bits ``F``, whose numbers are then 0 .. 65535.

    Args:
        image: loaded.
        grey: one channel (True), three (False; an ``F`` remains one, see `as_levels`), or as the
            picture has them.

    Raises:
        DataError: it is partly transparent, or its numbers have no range that is known.
    """
    if _see_through(image):
        raise DataError(
            "has transparent pixels, whose colour is not known",
            where=where,
            hint="lay it on a background and save it without an alpha channel",
        )
    if image.mode == "F":
        return _of_floats(image, where)
    if image.mode.startswith("I"):
        return _of_integers(image, where)
    return image.convert("L" if (is_grey(image) if grey is None else grey) else "RGB")


def as_levels(picture: Picture, grey: bool | None, bits: int | None) -> Levels:
    """Levels (H, W, C) of what `readable` gave.

    Args:
        grey: False repeats a channel that is alone three times.
        bits: 8 or 16; None: as the picture has them.
    """
    if picture.mode == "F":
        deep = np.clip(np.rint(np.asarray(picture)), 0, TOP[16])
        levels: Levels = deep.astype(np.uint16)
        if bits == 8:
            levels = np.rint(deep / _PER_LEVEL).astype(np.uint8)
        levels = levels[..., np.newaxis]
        return np.repeat(levels, 3, axis=2) if grey is False else levels
    levels = np.array(picture, dtype=np.uint8)  # writable
    if bits == 16:
        levels = levels.astype(np.uint16) * np.uint16(_PER_LEVEL)
    return levels[..., np.newaxis] if levels.ndim == 2 else levels


def _see_through(image: Picture) -> bool:
    if image.mode not in _ALPHA and "transparency" not in image.info:
        return False
    if image.mode.startswith("I"):  # one level of grey stands for nothing
        return bool((np.asarray(image) == image.info["transparency"]).any())
    return bool(image.convert("RGBA").getchannel("A").getextrema() != (255, 255))


def _of_floats(image: Picture, where: str) -> Picture:
    from PIL import Image

    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise DataError(
            f"has {int((~np.isfinite(values)).sum())} pixels that are NaN or infinite",
            where=where,
            hint="replace them, or leave the picture out",
        )
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise DataError(
            f"holds floats from {low:g} to {high:g}; only 0 .. 1 is known to mean black to white",
            where=where,
            hint="save it as 8 or 16 bits, or load it in a function of your own "
            "(data.name: module:function), which knows the range",
        )
    return Image.fromarray(values.astype(np.float32) * np.float32(TOP[16]))


def _of_integers(image: Picture, where: str) -> Picture:
    """Grey of 16 bits; of 32, and with a sign, nobody knows what is white."""
    from PIL import Image

    if not image.mode.startswith("I;16") and image.format not in ("PNG", "PPM"):
        low, high = (int(end) for end in image.getextrema())
        raise DataError(
            f"holds integers of 32 bits, or with a sign, here from {low} to {high}; what white is "
            "among them is not known",
            where=where,
            hint="save it as 8 or 16 bits without a sign, or load it in a function of your own "
            "(data.name: module:function)",
        )
    return Image.fromarray(np.asarray(image).astype(np.float32))


def warn_of_lost(levels: NDArray[Any], top: int, what: str, where: str) -> None:
    """Say so if a data set holds next to nothing: most of its values are one level, or most of its
    images are of one level each. Of many images some, evenly spread, are looked at.

    Args:
        levels: (N, ...) integers.
        top: the largest level, which saturation leads to.
        what: they are, in the plural, such as ``images``.
    """
    some = np.asarray(levels[:: 1 + levels.size // _LOOKED_AT])
    if not some.size:
        return
    lowest = int(some.min())
    counts = np.bincount((some.astype(np.int32) - lowest).reshape(-1))
    level, share = lowest + int(counts.argmax()), float(counts.max()) / some.size
    flat = some.reshape(len(some), -1)
    constant = float((flat == flat[:, :1]).all(axis=1).mean())
    if share > _MOST_ONE:
        saturated = ", the largest there is: they are saturated" if level == top else ""
        _log.warning(
            "%s: %.1f %% of all values are %d%s; look whether the %s are what they should be",
            where, 100 * share, level, saturated, what,
        )  # fmt: skip
    elif constant > _MOST_CONSTANT and flat.shape[1] > 1:
        _log.warning(
            "%s: %.1f %% of the %s are of one level each; look whether they are as they should be",
            where, 100 * constant, what,
        )  # fmt: skip
