"""`.ci/pythons` reports unavailable Python versions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = ("sh", "dirname", "ls", "mkdir", "python3")


def test_unavailable_version_is_skipped_with_a_warning(tmp_path: Path) -> None:
    script = tmp_path / "checkout" / ".ci" / "pythons"
    script.parent.mkdir(parents=True)
    shutil.copy2(ROOT / ".ci" / "pythons", script)
    tools = tmp_path / "checkout" / "build" / "pythons" / "tools" / "bin"
    tools.mkdir(parents=True)
    (tools / "uv").touch(mode=0o755)  # it exists, so nothing is installed
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        [script, "3.99"],
        env={"PATH": str(programs), "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "PYTHON 3.99 CANNOT BE HAD HERE, so nothing is tested on it\n"
