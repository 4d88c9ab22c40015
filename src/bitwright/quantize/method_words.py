# SPDX-License-Identifier: Apache-2.0
"""The words for the methods of post-training quantization, and their order. No torch here: a recipe
is checked without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.base.trust import code_names, is_plugin

#: The words, in the only order that makes sense: the float network first, then activation scales,
#: then tables, levels and biases of each layer, layer by layer.
ORDER = (
    "fold",
    "equalize",
    "absorb",
    "calibrate",
    "recalibrate",
    "codebooks",
    "clip",
    "gptq",
    "adaround",
    "bias",
)
#: Each chooses the levels of the weights, so only one of them can.
CHOOSE = ("clip", "gptq", "adaround")
#: What `post_training_quantize` does, and what a recipe does, where nothing is said.
DEFAULT = ("fold", "calibrate", "gptq", "bias")
RECIPE_DEFAULT = ("calibrate",)
#: Those that take their time on a large network and leave its structure as it is.
_SLOW = ("recalibrate", "codebooks", *CHOOSE)


def is_own(word: str) -> bool:
    """Whether a word names a method of the user's own, ``package.module:name``."""
    return word.partition(":")[0] not in ORDER and is_plugin(word)


def named_code(quant: Any) -> list[str]:
    """Code that the section ``quant`` of a recipe names, ``package.module:name``; not words of ours
    such as ``calibrate:mse``.
    """
    if not isinstance(quant, Mapping):
        return []
    methods = quant.get("methods") or ()
    methods = [methods] if isinstance(methods, str) else methods
    own = [word for word in methods if isinstance(word, str) and is_own(word)]
    return [*own, *code_names({key: value for key, value in quant.items() if key != "methods"})]


def check_words(words: Sequence[str], where: str = "methods") -> None:
    """Refuse unknown words, one given twice, a wrong order, and two that exclude each other.

    Methods of the user's own may stand anywhere.

    Raises:
        RecipeError: names what is wrong.
    """
    names = []
    for word in words:
        if not isinstance(word, str):
            raise RecipeError(f"{word!r} is no name of a method", where=where)
        name = word.partition(":")[0]
        if name not in ORDER and not is_own(word):
            raise RecipeError(
                f"unknown method {word!r}",
                where=where,
                hint=f"one of {', '.join(ORDER)}, or package.module:name of your own",
            )
        names.append(name if name in ORDER else word)
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"{name} is given twice", where=where, hint="name it once")
    known = [name for name in names if name in ORDER]
    wanted = sorted(known, key=ORDER.index)
    if known != wanted:
        raise RecipeError(
            f"the order {', '.join(known)} makes no sense",
            where=where,
            hint=f"write {', '.join(wanted)}",
        )
    chosen = [name for name in known if name in CHOOSE]
    if len(chosen) > 1:
        raise RecipeError(
            f"{' and '.join(chosen)} both choose the levels of the weights",
            where=where,
            hint="keep one of them",
        )


def check_trainable(words: Sequence[str], where: str = "methods") -> None:
    """Refuse a method that fixes the weights, where training in few bits is to follow.

    Raises:
        RecipeError: names it.
    """
    for word in words:
        if word in CHOOSE:
            raise RecipeError(
                f"{word} fixes the weights, which train.quantized is to train",
                where=where,
                hint=f"leave out {word}, or train.quantized",
            )


def quick(words: Sequence[str]) -> tuple[str, ...]:
    """The same without those that take long: the structure of the network is the same."""
    return tuple(word for word in words if word not in _SLOW)
