"""Finds the interpreters of the other systems. Run it to install each of these systems in its own venv.

    python benchmarks/peers.py [NAME ...]

Creates benchmarks/.peers/NAME. Set SCALER_BENCHMARK_PEERS to use the venvs in another directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DIRECTORY = "SCALER_BENCHMARK_PEERS"
ADAPTORS = {
    "scaler": "scaler_client",
    "opengris-scaler": "scaler_client",
    "dask": "dask_client",
    "ray": "ray_client",
    "executor": "executor",
}
COMMON = ("numpy==2.4.6", "psutil==7.2.2")
REQUIREMENTS = {
    "opengris-scaler": ("opengris-scaler[graphblas]==2.9.0", *COMMON),
    "dask": ("dask==2026.8.0", "distributed==2026.8.0", *COMMON),
    "ray": ("ray==2.60.0", *COMMON),
}
"""Packages of each peer. All other systems run in this interpreter."""
PACKAGES = {"scaler": "scaler-compute", "opengris-scaler": "opengris-scaler", "dask": "distributed", "ray": "ray"}

_VERSION = "import importlib.metadata, platform, sys; print(platform.python_version())\n"
_PACKAGE = "for name in sys.argv[1:]: print(name, importlib.metadata.version(name))"


def peers_directory() -> Path:
    return Path(os.environ.get(DIRECTORY) or Path(__file__).parent / ".peers")


def interpreter(system: str) -> Path | None:
    """Return a system's Python, or None if it is not installed."""
    if system not in REQUIREMENTS:
        return Path(sys.executable)
    found = peers_directory() / system / "bin" / "python"
    return found if found.exists() else None


def versions(system: str) -> str:
    """Return the versions of a system and its Python."""
    python = interpreter(system)
    assert python is not None
    packages = [name for name in (PACKAGES.get(system),) if name]
    told = subprocess.run([python, "-c", _VERSION + _PACKAGE, *packages], capture_output=True, text=True, check=True)
    version, *named = told.stdout.splitlines()
    return " ".join([*(named or [system]), f"on Python {version}"])


def install(name: str) -> None:
    """Create a peer's venv, with this interpreter's pip, because some Python installations lack `ensurepip`."""
    directory = peers_directory() / name
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", directory], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]], check=True)
    print(versions(name))


def main() -> None:
    names = sys.argv[1:] or list(REQUIREMENTS)
    unknown = set(names) - set(REQUIREMENTS)
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(REQUIREMENTS)}")
    for name in names:
        install(name)


if __name__ == "__main__":
    main()
