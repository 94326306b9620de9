"""Fuzzes targets for long, guided by coverage: `python -m tests.fuzz.run SECONDS TARGET ...`, or all targets.

Each target runs in a process of its own, where atheris instruments what it runs. Inputs that reach new code are kept in
the corpus, an input that a target does not bear in the corpus's `found`, with its error. Without atheris, mutations go
on without guidance.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

MAX_INPUT_BYTES = 16_384
RSS_LIMIT_MIB = 512
INSTRUMENTED = ["scaler"]
MAX_KEPT = 40
"""Inputs that one run adds to the corpus of a target: the smallest."""


def fuzz(name: str, seconds: float) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
    import atheris  # noqa: PLC0415 (only this process needs it, and only `make fuzz` installs it)

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz import targets  # noqa: PLC0415 (what is imported here is instrumented)
    target = targets.TARGETS[name]
    directory = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    for number, data in enumerate(target.seeds()):
        (directory / f"seed-{number}").write_bytes(data)
    print(f"inputs that reach new code: {directory}", flush=True)

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
    atheris.Setup(arguments, lambda data: target.run(data) and None, custom_mutator=mutate)
    atheris.Fuzz()


def keep_new(name: str, output: str) -> int:
    """Move the smallest new inputs into the corpus; return their number. Raises SystemExit for a bad one."""
    from tests.fuzz.corpora import CORPUS, keep  # noqa: PLC0415 (it imports scaler, which `fuzz` instruments)

    directory = Path(output.partition("inputs that reach new code: ")[2].partition("\n")[0])
    found = sorted(directory.glob("found-*"))
    new = sorted((each for each in directory.iterdir() if each.name[:5] not in ("seed-", "found")), key=_size)
    for file in new[:MAX_KEPT]:
        keep(name, file.read_bytes())
    for file in found:
        print(f"{name}: kept {file.replace(CORPUS / f'{name}-{file.name}')}")
    if found:
        print(output[-6_000:])
        raise SystemExit(1)
    return len(new[:MAX_KEPT])


def _size(file: Path) -> int:
    return file.stat().st_size


def main() -> None:
    seconds, *names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        fuzz(names[1], float(seconds))
        return
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415

    names = names or list(TARGETS)
    each_seconds = float(seconds) / len(names)
    for name in names:
        if importlib.util.find_spec("atheris") is None:
            walk_on(name, each_seconds)
            continue
        command = [sys.executable, "-m", "tests.fuzz.run", str(each_seconds), "--inside", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output = done.stdout.decode(errors="replace")
        kept = keep_new(name, output)
        runs = [line for line in output.splitlines() if "number_of_executed_units" in line or "cov:" in line]
        print(f"{name}: {kept} inputs kept; {' | '.join(runs[-2:])}", flush=True)
        if done.returncode:
            print(output[-6_000:])
            raise SystemExit(1)


def walk_on(name: str, seconds: float) -> None:
    """Fuzz without coverage."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    from tests.fuzz.walk import walk  # noqa: PLC0415

    end, seed, messages = time.monotonic() + seconds, time.time_ns(), 0
    while time.monotonic() < end:
        messages += walk(TARGETS[name], max(1, TARGETS[name].share // 10), seed)
        seed += 1
    print(f"{name}: {messages} messages without guidance, which needs atheris", flush=True)


if __name__ == "__main__":
    main()
