"""The interpreters of the systems that are compared. Run it to install the peers, each into its own venv.

    python benchmarks/peers.py [NAME ...]

makes benchmarks/.peers/NAME. Where SCALER_BENCHMARK_PEERS names a directory, those in it are used instead.
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
"""The peers; the other systems run in this interpreter."""
PACKAGES = {"scaler": "scaler-compute", "opengris-scaler": "opengris-scaler", "dask": "distributed", "ray": "ray"}

_VERSION = "import importlib.metadata, platform, sys; print(platform.python_version())\n"
_PACKAGE = "for name in sys.argv[1:]: print(name, importlib.metadata.version(name))"


def peers_directory() -> Path:
    return Path(os.environ.get(DIRECTORY) or Path(__file__).parent / ".peers")


def interpreter(system: str) -> Path | None:
    """Return the Python that has this system, None when it is not installed."""
    if system not in REQUIREMENTS:
        return Path(sys.executable)
    found = peers_directory() / system / "bin" / "python"
    return found if found.exists() else None


def versions(system: str) -> str:
    """Return the versions of a system and of its Python."""
    python = interpreter(system)
    assert python is not None
    packages = [name for name in (PACKAGES.get(system),) if name]
    told = subprocess.run([python, "-c", _VERSION + _PACKAGE, *packages], capture_output=True, text=True, check=True)
    version, *named = told.stdout.splitlines()
    return " ".join([*(named or [system]), f"on Python {version}"])


def install(name: str) -> None:
    """Make the venv of a peer. Its pip is this interpreter's, since not every system has what venv copies it from."""
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
