# SPDX-License-Identifier: Apache-2.0
"""A place that is written at the end of a long computation is this process's from its beginning."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bitwright.base.errors import RunError
from bitwright.base.files import cache_dir, check_free
from bitwright.base.folders import kept_way
from bitwright.base.locks import exclusive


@contextmanager
def claimed(*places: Path, force: bool = False) -> Iterator[None]:
    """Hold files or folders that will be written, as `check_free` lets them: another command of
    this user that wants one of them is refused, not overwritten.

    Args:
        force: replace what is there.

    Raises:
        RunError: one is there already, or another command holds it; as `kept_way`.
    """
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(kept_way(place))
        try:
            locks = cache_dir("claims")
        except OSError:  # no place for locks: as if this command were alone
            locks = None
        for place in sorted({Path(os.path.realpath(place)) for place in places}):
            if locks is None:
                break
            key = hashlib.sha256(bytes(place)).hexdigest()
            try:
                stack.enter_context(exclusive(locks / key, remove=True))
            except RunError as error:
                raise RunError(
                    f"is about to be written: {error.message}",
                    where=str(place),
                    hint="wait for that command, or name another place",
                ) from error
            except OSError:  # a cache that cannot be written: likewise
                break
        for place in places:
            check_free(place, force=force)
        yield
