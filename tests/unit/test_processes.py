"""The system's data about processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from scaler.processes import SIGNS_OF_NO_PIDFDS, LoadMeter, end_of, is_readable, send_signal


def test_busy_process_is_detected_and_a_waiting_one_is_not() -> None:
    # The name contains the field separators of the kernel's file.
    waits = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm', 'w').write(') S 1 ('); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with waits:
        assert waits.stdout is not None
        waits.stdout.readline()
        meter, used, began = LoadMeter(0.05), time.process_time(), time.monotonic()
        assert meter.measure([waits.pid]).keys() == {os.getpid(), waits.pid}
        inside = time.monotonic()
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        shortest_seconds = time.monotonic() - inside
        loads = meter.measure([waits.pid])
        longest_seconds, used = time.monotonic() - began, time.process_time() - used
        assert set(loads) == {os.getpid(), waits.pid}
        # The kernel counts in hundredths of a second.
        share = loads[os.getpid()].cpu_percent / 100
        assert share * longest_seconds > 0.07
        assert share * shortest_seconds < used + 0.03
        assert loads[waits.pid].cpu_percent / 100 * shortest_seconds < 0.03
        rss_bytes = psutil.Process(waits.pid).memory_info().rss
        assert loads[waits.pid].rss_bytes == pytest.approx(rss_bytes, rel=0.2)
        waits.communicate()


def test_skips_a_process_that_has_exited() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert set(LoadMeter().measure([gone.pid])) == {os.getpid()}


def test_meter_interval_does_not_depend_on_the_polling_rate() -> None:
    meter, until = LoadMeter(), time.process_time() + 0.1
    found = {meter.measure()[os.getpid()].cpu_percent}
    while time.process_time() < until:
        found.add(meter.measure()[os.getpid()].cpu_percent)
    assert len(found) <= 2  # a second may end meanwhile
    assert max(found) < 100 * threading.active_count() + 100


@pytest.mark.parametrize("error", [None, *SIGNS_OF_NO_PIDFDS], ids=lambda error: errno.errorcode.get(error, "pidfds"))
def test_process_exit_is_detected_with_and_without_pidfds(error: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        assert error is not None
        raise OSError(error, os.strerror(error))

    if error is not None:
        monkeypatch.setattr(os, "pidfd_open", fail)
        monkeypatch.setattr(signal, "pidfd_send_signal", fail)
    with subprocess.Popen(["sleep", "60"]) as process, subprocess.Popen(["sleep", "60"]) as other:
        ends = [end_of(each.pid) for each in (process, other)]
        assert not is_readable(ends[0], 0.05)
        os.close(ends[1])  # no longer awaited
        send_signal(process.pid, ends[0], signal.SIGKILL)
        other.kill()
        assert is_readable(ends[0], 10.0)
        assert process.wait() == -signal.SIGKILL
        ends.append(end_of(process.pid))
        assert is_readable(ends[2], 0.0)
        for end in ends[::2]:
            with pytest.raises(ProcessLookupError):
                send_signal(process.pid, end, signal.SIGKILL)
            os.close(end)
