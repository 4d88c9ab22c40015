# SPDX-License-Identifier: Apache-2.0
"""Run by itself: whether protobuf parses a file within limits; see `protobuf`.

    python protobuf_child.py FILE SCHEMA MESSAGE MEMORY SECONDS

SCHEMA is a serialized ``FileDescriptorProto``, MESSAGE the full name of a message of it. Nothing of
ours is imported.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

_LIMITS = runpy.run_path(str(Path(__file__).parents[1] / "base" / "tools" / "confine.py"))


def main() -> None:
    """Parse it; nothing comes of it but that it could be done."""
    source, schema, name, memory, seconds = sys.argv[1:]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(Path(schema).read_bytes())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    _LIMITS["confine"](int(memory), int(seconds))
    with _LIMITS["blaming_the_file"]():  # it says the same of no memory and of what is no message
        kind().ParseFromString(Path(source).read_bytes())


if __name__ == "__main__":
    main()
