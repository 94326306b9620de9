"""Extensions disabled by [scheduler] extensions."""

from __future__ import annotations

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.config.load import model_of
from scaler.config.servers import scheduler_model
from scaler.errors import ConfigError, RefusedError, TaskRejectedError, UsageError
from scaler.plugins import EXTENSIONS, extensions


def double(number: int) -> int:
    return 2 * number


def test_without_extensions_tasks_run_and_questions_explain_the_absence(capsys: pytest.CaptureFixture[str]) -> None:
    off = tuple(f"-{name}" for name in EXTENSIONS.built_in)
    with SchedulerClusterCombo(n_workers=1, extensions=off) as combo:
        with Client(combo.get_address()) as client:
            assert client.map(double, range(100)) == [2 * number for number in range(100)]
            with pytest.raises(RefusedError, match="has no table 'logs': its extension is not enabled there"):
                client.logs()
            with pytest.raises(TaskRejectedError, match="need the extension 'resources'"):
                client.options(memory="1GB").submit(double, 3).result()
            with pytest.raises(RefusedError, match="lacks the extension 'explain'"):
                client.explain(client.submit(double, 3))
        with pytest.raises(RefusedError, match="no durable sessions: its extension durability is disabled"):
            Client(combo.get_address(), session="night")
        assert run_command("scaler", ["audit", combo.get_monitor_address()]) == 1
        assert run_command("scaler", ["explain", bytes(16).hex(), combo.get_monitor_address()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "has no table 'audit': its extension is not enabled there" in err
    assert "lacks the extension 'explain'" in err


def test_unknown_name_error_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no extension 'audti' is installed; did you mean 'audit'\?"):
        extensions(("-audti",))


def test_missing_extension_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="audit_path has no effect while the extension audit is disabled"):
        model_of(scheduler_model(), {"bind_address": "tcp://127.0.0.1:0", "extensions": ["-audit"], "audit_path": "a"})
