"""The worker's requirements as installed here. As a program with EXTRA..., prints those of these extras."""

from __future__ import annotations

import sys

from scaler.pins import of_extra
from scaler.worker_manager.wheel import installation


def requirements_of(*extras: str) -> list[str]:
    """Return the requirements of these extras alone. Raises LookupError for a missing extra."""
    declared = installation().requires or ()
    found = {extra: [str(each) for each in of_extra(declared, extra)] for extra in extras}
    if missing := [extra for extra, names in found.items() if not names]:
        raise LookupError(
            f"the installation of scaler has no extra {missing[0]!r}: install it again, with pip install -e ."
        )
    return [each for names in found.values() for each in names]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in requirements_of(*sys.argv[1:])))
