"""Every block of the pages runs, and prints the output in the comments of its print calls."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.blocks import Block, Services, blocks_of, commands_of, is_service, promised_output
from tests.examples.programs import Programs

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/worker-managers.md",
    "docs/guide.md",
    "docs/client.md",
    "docs/monitoring.md",
    "docs/serializers.md",
    "docs/moving.md",
    "docs/moving-from-concurrent-futures.md",
    "docs/moving-from-multiprocessing.md",
    "docs/moving-from-joblib.md",
    "docs/moving-from-dask.md",
    "docs/moving-from-ray.md",
    "docs/moving-from-parsl-hyperqueue.md",
    "docs/libraries.md",
    "docs/policies.md",
    "docs/errors.md",
    "docs/modules.md",
    "docs/memory.md",
    "docs/jupyter.md",
    "docs/troubleshooting.md",
)
pytestmark = pytest.mark.timeout(180)  # the first test starts the services of all pages
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PROGRAMS = [block for block in BLOCKS if block.language == "python"]
SHOWN = "text"
"""Languages of blocks that no test can run: output, or a program of a library that is not installed here."""
ONCE = {"make demo", "make test", "pip install .", "pip install .[aws]"}
"""Commands that are not services and that other tests run."""
IN_A_CLOUD = {"scaler_worker_manager aws_hpc setup -c config/burst.toml", "scaler config/burst.toml"}
"""Commands that need a cloud: `test_burst.py` and `test_hpc_setup.py` run them against an emulator."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Services, set[str]]]:
    """All services that the pages start at the same time, and the names of the used blocks."""
    used = set()
    with Services(tmp_path_factory.mktemp("pages")) as running:
        started: list[list[str]] = []
        for block in BLOCKS:
            if block.language == "toml":
                running.save(block)
                used.add(block.name)
            elif block.language == "json":
                json.loads(block.text)
                used.add(block.name)
            elif block.language == "bash":
                for command in commands_of(block):
                    if is_service(command) and command not in started and " ".join(command) not in IN_A_CLOUD:
                        running.start(command)
                        started.append(command)
                used.add(block.name)
        yield running, used


@pytest.fixture(scope="module")
def programs(services: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    outputs = tmp_path_factory.mktemp("outputs")  # also for files that blocks create in the temporary directory
    running = Programs(outputs, {}, {**os.environ, "TMPDIR": str(outputs)})
    yield running
    running.close()


def test_every_documentation_block_is_run_by_a_test(services: tuple[Services, set[str]]) -> None:
    ran = services[1] | {block.name for block in PROGRAMS}
    assert ran == {block.name for block in BLOCKS if block.language != SHOWN}
    commands = [command for block in BLOCKS if block.language == "bash" for command in commands_of(block)]
    assert {" ".join(command) for command in commands if not is_service(command)} <= ONCE


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_python_block_prints_what_its_comments_state(
    block: Block, services: tuple[Services, object], programs: Programs, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(services[0].with_ports(block.text))
    result = programs.run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    promised = [services[0].with_ports(line) for line in promised_output(block)]
    assert result.stdout.splitlines() == promised
