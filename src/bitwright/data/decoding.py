# SPDX-License-Identifier: Apache-2.0
"""Image files to pixels: the whole image, or a window of it, at the size that is wanted."""

from __future__ import annotations

import ctypes
import io
import logging
import math
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitwright.base.archives import RATIO, most_of
from bitwright.base.errors import DataError
from bitwright.base.memory import Turns, ran_out, too_little
from bitwright.data.picture_stream import Watched
from bitwright.data.pixels import Levels, as_levels, is_deep_colour, is_grey, readable

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.Image import Resampling

Box = tuple[float, float, float, float]
"""Left, top, right, bottom of a window, in pixels of the image."""

T = TypeVar("T")

#: The formats that are read (`data.listing.EXTENSIONS`): Pillow would try all that it knows on any
#: file, of which PostScript starts another program.
PICTURES = ("JPEG", "PNG", "BMP", "PPM", "GIF", "TIFF", "WEBP")
#: A file of kilobytes can be a picture of gigabytes; cameras make no larger ones.
MOST_PIXELS = 8192 * 8192
#: Pixels that are decoded at a time: each takes some twenty bytes meanwhile, and there are as many
#: threads as processors.
_TURNS = Turns(MOST_PIXELS)
#: Numbers (of pixels and channels) that Pillow decodes in Python, a million in half a second: plain
#: PNM files, those with other largest values than 255 and 65535, and BMP files in runs; and bytes
#: of such a file, whatever they say.
_MOST_SLOW, _MOST_SLOW_BYTES = 1 << 23, 1 << 25
#: Pixels that all scans of a JPEG file go through: a progressive one has some ten scans, each over
#: the whole picture, whether there is anything in it or not; and those of a scan, at least.
_MOST_SCANNED, _LEAST_SCANNED = 32 * MOST_PIXELS, 1 << 16
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # of JPEG, but for those inside of scans
_SCAN, _END, _BARE = 0xDA, 0xD9, (0x01, 0xD8)  # bare: without a length
_MOST_SEGMENTS = 100_000
#: A tile of TIFF is unpacked whole, and may be larger than the picture: so many times, or so many
#: pixels in any case.
_MOST_WIDER, _LEAST_TILE = 4, 4096 * 4096
_MOST_DRAWN = 2  # times that all tiles together draw the picture, each of its channels
_TILE = (322, 323)  # tags of its width and length
#: Pages of black and white have one bit a pixel, and shrink further than other data.
_SHRINK = 10
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of Exif
_GAP = 2.0  # a window more than twice too large is first averaged by whole factors (Pillow)
_ATTEMPTS = 10
_RATIOS = (math.log(3 / 4), math.log(4 / 3))


@dataclass(frozen=True)
class Decoding:
    """How image files become arrays of whole images.

    Attributes:
        size: (H, W) to resize to (bilinear); None keeps the size, which must then be one for all.
        grey: one channel (True), three (False), or as the image has them (None).
        bits: 8 or 16 of each level, or as the image has them (None).
    """

    size: tuple[int, int] | None = None
    grey: bool | None = None
    bits: int | None = 8


@dataclass(frozen=True)
class Framing:
    """How image files of any size become arrays of one size, without changing proportions.

    Attributes:
        size: (H, W) of the array.
        short_side: pixels of the short side of the image from whose middle ``size`` is cut.
        grey: one channel instead of three.
        bits: 8 or 16 of each level.
    """

    size: tuple[int, int]
    short_side: int
    grey: bool = False
    bits: int = 8

    def middle(self, width: int, height: int) -> Box:
        """The window in the middle of an image: the rest is cut off on all sides."""
        scale = min(width, height) / self.short_side
        across, down = self.size[1] * scale, self.size[0] * scale
        left, top = (width - across) / 2, (height - down) / 2
        return left, top, left + across, top + down


@dataclass(frozen=True)
class RandomCrop:
    """A window of random size, proportions and place, resized to the size that is wanted (Szegedy
    et al. 2015, section 6): its share of the image's area is uniform, its proportions lie between
    3:4 and 4:3 of those that are wanted.

    Attributes:
        smallest: the least share of the area.
        seed: of the run.
        epoch: the window of an image is a function of seed, epoch and the image's index alone.
    """

    smallest: float
    seed: int
    epoch: int

    def window(self, width: int, height: int, size: tuple[int, int], index: int) -> Box:
        """The window of one image.

        Args:
            width: of the image, as ``height``.
            size: (H, W) that is wanted.
            index: number of the image in its source.
        """
        draws = _uniform(self.seed, self.epoch, index, 4 * _ATTEMPTS).reshape(_ATTEMPTS, 4)
        wanted = size[1] / size[0]
        for area, ratio, across, down in draws.tolist():
            pixels = width * height * (self.smallest + area * (1 - self.smallest))
            shape = wanted * math.exp(_RATIOS[0] + ratio * (_RATIOS[1] - _RATIOS[0]))
            wide, high = math.sqrt(pixels * shape), math.sqrt(pixels / shape)
            if wide <= width and high <= height:
                left, top = across * (width - wide), down * (height - high)
                return left, top, left + wide, top + high
        wide = min(float(width), height * wanted)  # the image is very long: all that fits, centred
        high = min(float(height), width / wanted)
        left, top = (width - wide) / 2, (height - high) / 2
        return left, top, left + wide, top + high


def _uniform(seed: int, epoch: int, index: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1): Philox by key and counter, the same on every machine and for ever."""
    bits = np.random.Philox(key=[seed, index], counter=[0, 0, 0, epoch])
    return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53


def decode_image(content: bytes, decoding: Decoding, where: str) -> Levels:
    """One image file as (H, W, C) uint8 or uint16.

    Raises:
        DataError: it is corrupt, cut short, has more than `MOST_PIXELS`, is packed in a way that
            takes far more time or memory than a picture of its size does, or its pixels are none
            that this gives (`data.pixels`).
    """

    def whole(image: Picture) -> Picture:
        if decoding.size is not None and image.size != decoding.size[::-1]:
            image = image.resize(decoding.size[::-1], _bilinear())
        return image

    return _decoded(content, whole, (decoding.grey, decoding.bits), where)


def frame_image(
    content: bytes, framing: Framing, where: str, *, crop: RandomCrop | None = None, index: int = 0
) -> Levels:
    """A window of one image file as (H, W, C), uint8 or uint16: its middle, or a random one.

    Args:
        index: number of the image, on which a random window depends.

    Raises:
        DataError: as `decode_image`.
    """

    def framed(image: Picture) -> Picture:
        if crop is None:
            box = framing.middle(*image.size)
        else:
            box = crop.window(*image.size, framing.size, index)
        return image.resize(framing.size[::-1], _bilinear(), box=box, reducing_gap=_GAP)

    return _decoded(content, framed, (framing.grey, framing.bits), where)


@dataclass(frozen=True)
class Header:
    """What the beginning of an image file says.

    Attributes:
        grey: whether it has one channel.
        bits: 8 or 16 of each level.
        numbers: of pixels and channels that there are to decode, whatever is made of them.
    """

    grey: bool
    bits: int
    numbers: int


def read_header(stream: IO[bytes], where: str) -> Header:
    """Read the beginning of an image file alone.

    Raises:
        DataError: it is no image, or one of more than `MOST_PIXELS`.
    """
    return _opened(stream, _header, where)


def _header(image: Picture) -> Header:
    deep = is_deep_colour(image) or image.mode.startswith("I") or image.mode == "F"
    numbers = math.prod(image.size) * len(image.getbands())
    return Header(is_grey(image), 16 if deep else 8, numbers)


def read_size(stream: IO[bytes], where: str) -> tuple[int, int]:
    """(H, W) of an image file as it is shown, from its beginning alone.

    Raises:
        DataError: it is no image, or one of more than `MOST_PIXELS`.
    """

    def size(image: Picture) -> tuple[int, int]:
        turned = image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE
        return image.size if turned else image.size[::-1]

    return _opened(stream, size, where)


def decode_map(content: bytes, where: str) -> NDArray[np.uint8]:
    """A picture whose pixels are numbers and no colours, (H, W) uint8: a PNG file of grey or
    palette, of which the indices count.

    Raises:
        DataError: it is of another kind, corrupt, or has more than `MOST_PIXELS`.
    """

    def numbers(image: Picture) -> NDArray[np.uint8]:
        if image.format != "PNG" or image.mode not in ("1", "L", "P"):
            raise DataError(
                f"is {image.format} of mode {image.mode}",
                where=where,
                hint="save classes as a PNG file of 8 bits, grey or with a palette",
            )
        with _TURNS.of(image.width * image.height):
            return np.array(image, dtype=np.uint8)

    return _opened(io.BytesIO(content), numbers, where)


def check_growth(
    made: int, packed: int, what: str, where: str, hint: str, *, one_by_one: bool = False
) -> None:
    """Refuse pictures that fill a file's memory and not the file.

    Args:
        made: bytes of all their pixels.
        packed: bytes of their files.
        what: they are, in the plural: ``18 images``.
        one_by_one: each is gone before the next: the machine's memory says nothing of them all.

    Raises:
        DataError: there are more pixels than real pictures of so many bytes have.
    """
    if made > max(most_of(_SHRINK * packed), one_by_one * RATIO * _SHRINK * packed):
        said = f"{what} come from {packed} bytes: so far does no real image shrink"
        raise DataError(said, where=where, hint=hint)


def _decoded(
    content: bytes,
    change: Callable[[Picture], Picture],
    wanted: tuple[bool | None, int | None],
    where: str,
) -> Levels:
    """Levels of a picture turned upright, made readable and changed, with ``wanted`` channels
    (grey) and bits.
    """
    from PIL import ImageOps

    stream, (grey, bits) = io.BytesIO(content), wanted

    def pixels(image: Picture) -> Levels:
        wrong = _too_slow(image, content) or _too_wide(image)
        if wrong is not None:
            raise DataError(wrong, where=where, hint="save the picture again, as PNG")
        if bits != 8 and is_deep_colour(image):
            raise DataError(
                "has 16 bits in each of its channels, of which eight can be read",
                where=where,
                hint="set data.bits to 8, or load it in a function of your own "
                "(data.name: module:function)",
            )
        kind = image.format
        with _TURNS.of(image.width * image.height):
            upright = ImageOps.exif_transpose(image)
            upright.format = kind  # which turning forgets
            return as_levels(change(readable(upright, grey, where)), grey, bits)

    return _opened(stream, pixels, where)


def _too_slow(image: Picture, content: bytes) -> str | None:
    """What makes a picture take far more time than its pixels do; None: nothing."""
    width, height = image.size
    if _is_slow(image):
        numbers = width * height * len(image.getbands())
        if numbers > _MOST_SLOW or len(content) > _MOST_SLOW_BYTES:
            return (
                f"has {numbers} numbers in {len(content)} bytes of a kind that is decoded slowly, "
                f"at most {_MOST_SLOW} in {_MOST_SLOW_BYTES} are"
            )
    if image.format in ("JPEG", "MPO"):
        most = _MOST_SCANNED // max(_LEAST_SCANNED, width * height)
        # In a scan these two bytes are nothing else; what lies before or behind may have them.
        scans = content.count(bytes([0xFF, _SCAN]))
        if scans > most and (scans := _scans(content)) > most:
            return f"has {scans} scans of {width} x {height} pixels, at most {most} are decoded"
    return None


def _is_slow(image: Picture) -> bool:
    """Whether Pillow decodes it in Python."""
    from PIL import Image

    return any(tile[0] in Image.DECODERS for tile in image.tile)


def _scans(content: bytes) -> int:
    """Scans of a JPEG file; at least so many where it has segments without end."""
    at = count = 0
    for _ in range(_MOST_SEGMENTS):
        match = _MARKER.search(content, at)
        if match is None or match[0][1] == _END:
            return count
        count += match[0][1] == _SCAN
        at = match.end()
        if match[0][1] not in _BARE:
            at += int.from_bytes(content[at : at + 2])
    return content.count(bytes([0xFF, _SCAN]))


def _too_wide(image: Picture) -> str | None:
    """What makes a picture of TIFF take far more memory or time than its pixels do; None: nothing.
    Each of its strips may draw nearly the whole picture.
    """
    pixels = image.width * image.height
    boxes = [box for _, box, *_ in image.tile if box]
    drawn = sum((right - left) * (low - high) for left, high, right, low in boxes)
    if drawn > _MOST_DRAWN * len(image.getbands()) * pixels:
        return f"has parts of {drawn} pixels together, for a picture of {pixels}"
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    sides = [tags.get(tag) for tag in _TILE]
    if not all(isinstance(side, int) for side in sides):  # strips are no longer than the picture
        return None
    most = max(_LEAST_TILE, _MOST_WIDER * pixels)
    if math.prod(sides) > most:
        return f"has tiles of {sides[0]} x {sides[1]} pixels, at most {most} pixels are unpacked"
    return None


def _opened(stream: IO[bytes], work: Callable[[Picture], T], where: str) -> T:
    watched = Watched(stream, where)
    try:
        with _pillow().open(watched, formats=PICTURES) as image:  # reads the header alone
            watched.opened(slow=_is_slow(image))
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise DataError(
                    f"has {width} x {height} pixels (width x height), at most {MOST_PIXELS} are "
                    "decoded",
                    where=where,
                    hint="make the picture smaller",
                )
            return work(image)
    except DataError:
        raise
    except Exception as error:  # Pillow raises whatever a broken file makes it stumble over
        if ran_out(error):
            raise too_little(where) from error
        reason = str(error).replace(repr(watched), "the file")  # no addresses of memory
        raise DataError(
            f"cannot be decoded: {reason}",
            where=where,
            hint="the image is corrupt or cut short; replace or remove it",
        ) from error


@cache
def _pillow() -> ModuleType:
    """Pillow's images, whose warnings of damaged files are not for the terminal: a file is decoded
    or refused. They are turned off once for all, since threads share what is turned off; what it
    logs still goes to where a program says.
    """
    from PIL import Image

    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    # libtiff, as Pillow's wheels bring it, writes to standard error itself.
    for library in Path(Image.__file__).parents[1].glob("[pP]illow.libs/libtiff*"):
        with suppress(OSError, AttributeError):
            libtiff = ctypes.CDLL(str(library))
            libtiff.TIFFSetErrorHandler(None)
            libtiff.TIFFSetWarningHandler(None)
    return Image


def _bilinear() -> Resampling:
    from PIL.Image import Resampling

    return Resampling.BILINEAR
