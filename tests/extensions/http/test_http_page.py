"""The page about HTTP: each command prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from scaler.cluster.supervisor import ReservedPorts
from tests.examples.blocks import SCRIPTS, blocks_of
from tests.integration.launcher_rig import Launcher
from tests.waiting import until

PAGE = "docs/http.md"
_PROMPT = "$ "
_CHANGES = re.compile(r'"id":"[0-9a-f]{32}"|"submitted_at":[0-9.]+')


@pytest.mark.timeout(120)
def test_commands_print_what_the_page_shows(tmp_path: Path, ports: ReservedPorts) -> None:
    address, numbers = ports.address(), {"8516": str(ports.first), "50002": str(ports.first + 3)}
    files = [block.text for block in blocks_of(PAGE) if block.language == "toml"]
    text = "".join(files).replace("[http]", "[http]\nweb_port = 50002")
    lines = [line for block in blocks_of(PAGE) if block.language == "console" for line in block.text.splitlines()]
    script = "\n".join(line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT))
    for shown, port in numbers.items():
        text, script = text.replace(shown, port), script.replace(shown, port)
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    environment = {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "SCALER_ADDRESS": address}
    launcher = Launcher(file, {})
    try:
        assert launcher.wait_ready()
        url = f"http://127.0.0.1:{numbers['50002']}/v1/openapi.json"
        until(lambda: subprocess.run(["curl", "-s", "-o", "/dev/null", url], check=False).returncode == 0)
        found = subprocess.run(
            # curl's answers end without a newline
            ["bash", "-c", f'curl() {{ command curl "$@"; echo; }}\n{script}'],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        launcher.stop()
    finally:
        launcher.close()
    shown_lines = [line for line in lines if not line.startswith(_PROMPT)]
    assert _CHANGES.sub("", found.stdout).splitlines() == [_CHANGES.sub("", line) for line in shown_lines]
    assert found.stderr == ""
