"""Which gpus of a host are this worker's: each worker claims some, so that several on one host share none.

A claim is a socket in the abstract namespace that has the gpu's name: the kernel gives it up when the worker ends.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from scaler.needs import GPU

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_claims: list[socket.socket] = []


def claim_gpus(
    capabilities: Mapping[str, float | None], environment: Mapping[str, str], devices: Path = Path("/dev")
) -> tuple[str, ...]:
    """Claim as many gpus as the capabilities offer, for CUDA_VISIBLE_DEVICES.

    Takes gpus in CUDA_VISIBLE_DEVICES, or all. Shares some if too few are free. Without any gpu, numbers from 0.
    """
    count = math.ceil(capabilities.get(GPU) or 0)
    if count <= 0:
        return ()
    given = environment.get(VISIBLE_VARIABLE, "")
    found = sorted(int(entry.name[6:]) for entry in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))
    names = [name.strip() for name in given.split(",") if name.strip()] or [
        str(number) for number in found or range(count)
    ]
    chosen: list[str] = []
    for name in names:
        if len(chosen) < count and _claim(name):
            chosen.append(name)
    others = [name for name in names if name not in chosen]
    return tuple(chosen + others[: count - len(chosen)])


def _claim(name: str) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0scaler-gpu-{os.getuid()}-{name}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
