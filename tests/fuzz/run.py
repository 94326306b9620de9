"""Fuzzes targets for a long time, guided by coverage: `python -m tests.fuzz.run SECONDS [TARGET ...]` (default: all).

Each target runs in a separate process, in which atheris instruments the target's code. The smallest inputs that reach
new code are stored in the corpus. Failing inputs are stored in `found` with a traceback, once per error location. The
run then continues, and its exit code is 1. Without atheris, mutations are unguided.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

MAX_INPUT_BYTES = 16_384
RSS_LIMIT_MIB = 512
INSTRUMENTED = ["scaler"]
FOUND = Path(__file__).with_name("found")
MAX_KEPT = 40
"""Maximum number of inputs, the smallest ones, that a run adds to a target's corpus."""
MAX_FOUND = 100
"""Maximum number of failing inputs that a run stores, one per error location."""


class Findings:
    """The findings in one target. Stores failing inputs with tracebacks, and raises nothing."""

    def __init__(self, name: str, run: Callable[[bytes], int]) -> None:
        self._name = name
        self._run = run
        self._places: set[str] = set()

    def run(self, data: bytes) -> int:
        try:
            return self._run(data)
        except Exception as error:  # noqa: BLE001 (whatever a target raises is a finding)
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            place = f"{type(error).__name__} at {' '.join(f'{each.filename}:{each.lineno}' for each in frames)}"
            if place not in self._places and len(self._places) < MAX_FOUND:
                self._places.add(place)
                keep_finding(self._name, data, "".join(traceback.format_exception(error)))
            return 1


def keep_finding(name: str, data: bytes, text: str) -> None:
    FOUND.mkdir(exist_ok=True)
    file = FOUND / f"{name}-{sha256(data).hexdigest()[:16]}"
    file.write_bytes(data)
    file.with_suffix(".txt").write_text(text)
    print(f"{name}: found {file}\n{text}", flush=True)


def fuzz(name: str, seconds: float, directory: Path) -> None:
    """Fuzz one target in this process, which libFuzzer ends. Stores inputs that reach new code in the directory."""
    if importlib.util.find_spec("atheris") is None:
        walk_on(name, seconds)
        return
    import atheris  # noqa: PLC0415 (only this process needs it, and only `make fuzz` installs it)

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz import targets  # noqa: PLC0415 (what is imported here is instrumented)
    target = targets.TARGETS[name]
    findings = Findings(name, target.run)
    for number, data in enumerate(target.seeds()):
        (directory / f"seed-{number}").write_bytes(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        changed = atheris.Mutate(data, max_size) if random.random() < 0.2 else target.mutate(random, data)
        return bytes(changed[:max_size])

    arguments = [
        "fuzz",
        str(directory),
        f"-max_total_time={seconds:.0f}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-rss_limit_mb={RSS_LIMIT_MIB}",
        f"-artifact_prefix={directory}/found-",
        "-timeout=20",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, lambda data: findings.run(data) and None, custom_mutator=mutate)
    atheris.Fuzz()


def walk_on(name: str, seconds: float) -> None:
    """Fuzz without coverage."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    from tests.fuzz.walk import mutated  # noqa: PLC0415

    target, end, inputs = TARGETS[name], time.monotonic() + seconds, 0
    findings = Findings(name, target.run)
    for data in mutated(target, time.time_ns()):
        if time.monotonic() > end:
            break
        findings.run(data)
        inputs += 1
    print(f"stat::number_of_executed_units: {inputs}", flush=True)


def main() -> int:
    seconds, *names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        fuzz(names[1], float(seconds), Path(names[2]))
        return 0
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 (it imports scaler, which `fuzz` instruments)

    names = names or list(TARGETS)
    began = time.time()
    summary = [fuzz_apart(name, float(seconds) / len(names)) for name in names]
    print("", *summary, sep="\n")
    found = sorted(each for each in FOUND.glob("*") if not each.suffix and each.stat().st_mtime >= began)
    print(f"{len(found)} failing inputs", *found, sep="\n")
    return 1 if found else 0


def fuzz_apart(name: str, seconds: float) -> str:
    """Fuzz one target in a separate process, and store its findings. Returns a line of figures."""
    from tests.fuzz.corpora import keep  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as directory:
        command = [sys.executable, "-m", "tests.fuzz.run", str(seconds), "--inside", name, directory]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        assert child.stdout is not None
        output = ""
        for line in child.stdout:
            output = output[-100_000:] + line
            print(line, end="", flush=True)
        files = list(Path(directory).iterdir())
        ends = [each for each in files if each.name.startswith("found-")]
        if child.wait() and not ends:  # such as an import error or a kill
            keep_finding(name, b"", output[-6_000:])
        for file in ends:  # libFuzzer ended the target: too slow, too much memory, or a crash
            keep_finding(name, file.read_bytes(), output[-6_000:])
        new = sorted((each for each in files if each.name[:5] not in ("seed-", "found")), key=_size)[:MAX_KEPT]
        for file in new:
            keep(name, file.read_bytes())
    figures = {}
    for what, pattern in (
        ("inputs", r"executed_units: +(\d+)"),
        ("coverage", r"cov: (\d+)"),
        ("MiB", r"rss_mb: +(\d+)"),
    ):
        with suppress(IndexError):
            figures[what] = re.findall(pattern, output)[-1]
    return f"{name}: {', '.join(f'{what} {figure}' for what, figure in figures.items())}, {len(new)} inputs kept"


def _size(file: Path) -> int:
    return file.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
