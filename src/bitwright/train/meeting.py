# SPDX-License-Identifier: Apache-2.0
"""Where the processes of a training on several devices meet: in a file that is this user's.

By default torch opens a store on every interface of the machine, which asks nobody for a password.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch.distributed
from lightning_fabric.strategies import DDPStrategy
from torch.distributed.constants import default_pg_timeout

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = ("lo", "lo0")  # of Linux, of macOS


class PrivateDDP(DDPStrategy):
    """DDP in processes of this machine alone, which meet in a file, and of which those without GPUs
    talk over its loopback interface.

    Args:
        place: of the file, in a folder that is nobody else's.
        options: of `DDPStrategy`.
    """

    def __init__(self, place: Path, **options: Any) -> None:
        super().__init__(**options)
        self.place = place

    def setup_environment(self) -> None:
        """As Fabric's own, which opens no store where torch has one already."""
        device = self.root_device
        self.accelerator.setup_device(device)
        has_gpu = device.type == "cuda"
        if not has_gpu:
            for _, name in socket.if_nameindex():
                if name in _LOOPBACK:
                    os.environ[_INTERFACE] = name
        torch.distributed.init_process_group(
            "nccl" if has_gpu else "gloo",
            store=torch.distributed.FileStore(str(self.place), self.num_processes),
            rank=self.local_rank,
            world_size=self.num_processes,
            timeout=default_pg_timeout,
            device_id=device if has_gpu else None,
        )
        super().setup_environment()
