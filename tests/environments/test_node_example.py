"""The JavaScript client of `examples/node` on Node: its program, its error messages, and its robustness."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import write_private
from tests.integration.free_ports import free_addresses
from tests.integration.test_scheduler_restart import Cluster

pytestmark = pytest.mark.timeout(180)  # the first test waits for npm and a compiler
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
BUILT = ROOT / "build" / "node"
"""At the same depth below the root as the example, because the schema's path is relative."""
GATE = """
import pathlib, time

def passed(file, value):
    while not pathlib.Path(file).exists():
        time.sleep(0.01)  # the workers of the example have no tests/waiting.py
    return value

def added(*values):
    return sum(values)
"""


@pytest.fixture(scope="module")
def node() -> Path:
    """Return the directory of the installed example."""
    missing = [each for each in ("node", "npm", "capnp") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"THE EXAMPLE FOR NODE IS NOT TESTED: there is no {', '.join(missing)} here")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 18:
        pytest.skip(f"THE EXAMPLE FOR NODE IS NOT TESTED: it needs Node 18, and this is {version}")
    BUILT.mkdir(parents=True, exist_ok=True)
    for path in [
        *EXAMPLE.glob("*.mjs"),
        *EXAMPLE.glob("*.json"),
        EXAMPLE / ".npmrc",
        *(ROOT / "tests/environments/node_programs").iterdir(),
    ]:
        shutil.copy(path, BUILT)
    installed = subprocess.run(
        ["npm", "ci", "--ignore-scripts"], cwd=BUILT, capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"THE EXAMPLE FOR NODE IS NOT TESTED: npm cannot install it: {installed.stderr[-500:]}")
    subprocess.run(["npm", "run", "schema"], cwd=BUILT, capture_output=True, check=True)
    return BUILT


class Keys:
    """A keys directory, and a client's credential."""

    def __init__(self, directory: Path) -> None:
        keys = KeysDirectory.create(directory / "keys", "test")
        self.path = str(keys.path)
        self.credential = str(directory / "node.credentials")
        write_private(Path(self.credential), keys.add("node", "client").to_text(), replace=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def address(keys: Keys) -> Iterator[str]:
    """Address of a cluster whose workers find the example's module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLE))
        with SchedulerClusterCombo(free_addresses()[0], 2, credentials=keys.path) as combo:
            yield combo.get_address()


def run(node: Path, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", *command], cwd=node, capture_output=True, text=True, timeout=seconds, check=False)


def test_program_prints_what_python_has_computed(node: Path, keys: Keys, address: str) -> None:
    ran = run(node, "prices.mjs", address, keys.credential)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "20! = 2432902008176640000",
        "prices: 14.81 8.92 4.94",
        "the highest: 14.81",
        "sorted: 100000 numbers, the first is 99999",
        "an error of Python: ValueError: a strike is above 0, and not -1",
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("none", "the handshake failed"),
        ("unknown", "the server refuses this key"),
        ("of another cluster", "the handshake failed"),
        ("nothing listens", "nothing listens there"),
    ],
)
def test_connection_obstacle_is_reported(
    node: Path, keys: Keys, address: str, given: str, text: str, tmp_path: Path
) -> None:
    credential = Path(keys.credential).read_text()
    if given == "unknown":
        other = Keys(tmp_path)
        own = [
            line for line in Path(other.credential).read_text().splitlines() if line.startswith(("public", "secret"))
        ]
        rest = [line for line in credential.splitlines() if not line.startswith(("public", "secret"))]
        credential = "\n".join([*rest, *own])
    elif given == "of another cluster":
        credential = Path(Keys(tmp_path).credential).read_text()
    path = tmp_path / "given.credentials"
    path.write_text(credential)
    target = free_addresses()[0] if given == "nothing listens" else address
    options = {"timeoutMs": 3000, **({} if given == "none" else {"credentials": str(path)})}
    program = f"""
        import {{ Client }} from "./scaler_client.mjs";
        await Client.connect({target!r}, {json.dumps(options)}).catch((error) => console.log(error.message));
    """
    ran = run(node, "--input-type=module", "--eval", program)
    assert text in ran.stdout, ran.stderr


def test_usage_error_is_reported_and_a_failed_input_fails_its_dependents(node: Path, keys: Keys, address: str) -> None:
    program = f"""
        import {{ Client }} from "./scaler_client.mjs";
        const client = await Client.connect({address!r}, {json.dumps({"credentials": keys.credential})});
        const say = (task) => task.result.catch((error) => console.log(`${{error.outcome}} ${{error.message}}`));
        try {{ client.submit("math:sqrt", [4], {{}}, {{ priorty: 1 }}) }} catch (error) {{ console.log(error.message) }}
        const failed = client.submit("math:sqrt", [-4]);
        await say(failed);
        await say(client.submit("math:sqrt", [failed]));
        await say(client.submit("math:no_such", []));
        client.cancel(failed);
        const cancelled = client.submit("time:sleep", [600]);
        client.cancel(cancelled);
        await say(cancelled);
        await client.close();
    """
    ran = run(node, "--input-type=module", "--eval", program)
    lines = ran.stdout.splitlines()
    assert lines[:3] == [
        "there is no option priorty: see Spec in the schema",
        "EXCEPTION ValueError: math domain error",
        "EXCEPTION ValueError: math domain error",
    ], ran.stderr
    assert "no_such" in lines[3]
    assert lines[4].startswith("CANCELLED ")


@pytest.fixture
def modules(tmp_path: Path) -> str:
    """Return a directory for PYTHONPATH with the module `gate`."""
    path = tmp_path / "modules"
    path.mkdir()
    (path / "gate.py").write_text(GATE)
    return str(path)


def test_nothing_is_lost_when_the_scheduler_is_killed_and_restarted(
    node: Path, keys: Keys, modules: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with closing(Cluster(tmp_path, 2, PYTHONPATH=modules, SCALER_CREDENTIALS=keys.path)) as cluster:
        cluster.start()
        command = ["node", "outage.mjs", cluster.address, keys.credential, str(go)]
        with subprocess.Popen(command, cwd=node, stdout=subprocess.PIPE, text=True) as program:
            end = threading.Timer(60.0, program.kill)
            end.start()
            assert program.stdout is not None
            assert program.stdout.readline() == "submitted\n"
            cluster.restart()
            go.touch()
            lines = program.stdout.read().splitlines()
            end.cancel()
        assert lines == ["[0,1,2,3,4,5,6,7] last 20000 32", "CANCELLED", "120"]
        assert program.returncode == 0
