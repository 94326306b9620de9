"""Describes the machine in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def machine(rounds: int) -> str:
    cpus = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    found = f"{cpus} CPUs ({model()}), {memory:.0f} GiB, Linux {platform.release().partition('-')[0]}"
    return f"{found}. " + ("One run each." if rounds == 1 else f"Medians of {rounds}.")


def model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
