"""The metrics that Prometheus reads from `/metrics`."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from scaler.monitor.cluster_rows import ConnectionRow
from scaler.monitor.model import Model
from scaler.monitor.web.metrics import Metrics
from tests.unit.monitor.web_rig import NASTY, PreparedMonitor, ask, filled_model, run, status


class Scrapes:
    """Scrapes of one model, with their samples by name and labels."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._metrics = Metrics(PreparedMonitor(model), lambda: ConnectionRow(connected=True, age_seconds=0.5))

    def samples(self) -> dict[str, float]:
        reply = run(self._metrics.answer(Request({"type": "http", "headers": []})))
        return samples_of(bytes(reply.body).decode())


def samples_of(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def functions(*rows: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "ended": ended, "failed": 1, "seconds_total": ended / 2} for name, ended in rows]


def test_metrics_of_the_state_use_base_units() -> None:
    reply = ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    found = samples_of(reply.text)
    expected = {
        "scaler_scheduler_up": 1,
        "scaler_tasks{state=waiting}": 1,
        "scaler_tasks{state=ready}": 2,
        "scaler_tasks{state=assigned}": 2,
        "scaler_tasks{state=running}": 3,
        "scaler_tasks_ended_total{outcome=done}": 7,
        "scaler_tasks_ended_total{outcome=exception}": 2,
        "scaler_workers": 1,
        "scaler_slots": 2,
        "scaler_units{manager=here,state=running}": 1,
        "scaler_units{manager=here,state=pending}": 1,
        "scaler_units{manager=here,state=failed}": 0,
        "scaler_units_desired{manager=here}": 2,
        "scaler_messages_total{direction=sent,kind=Submit}": 5,
        "scaler_messages_total{direction=received,kind=Finished}": 6,
        "scaler_scheduler_cpu_ratio": 0.5,
        "scaler_scheduler_resident_memory_bytes": 1000,
        "scaler_insecure_no_auth": 1,
        "scaler_scheduler_journal_bytes": 2048,
        "scaler_scheduler_disk_failed": 1,
        "scaler_scheduler_step_seconds_max": 0.25,
        "scaler_scheduler_uptime_seconds": 10,
        "scaler_workers_cpu_ratio": 0.135,
        "scaler_object_storage_bytes": 4096,
        "scaler_object_storage_limit_bytes": 8192,
        "scaler_object_storage_spilled_bytes": 512,
        "scaler_object_storage_state_bytes": 256,
        "scaler_object_storage_disk_failed": 0,
        "scaler_stores": 3,
        "scaler_stores_unreachable": 1,
        "scaler_store_bytes{host=object storage}": 4096,
        "scaler_store_bytes{host=alpha}": 1001,
        "scaler_store_limit_bytes{host=alpha}": 4000,
        "scaler_store_hits_total{host=alpha}": 4,
        "scaler_store_misses_total{host=alpha}": 2,
        "scaler_store_received_bytes_total{host=alpha}": 75,
        "scaler_store_moved_bytes_total{source=object storage,target=alpha}": 70,
        "scaler_function_tasks{function=work,state=running}": 3,
        "scaler_function_duration_seconds_count{function=work}": 9,
        "scaler_function_duration_seconds_sum{function=work}": 4.5,
        "scaler_function_tasks_failed_total{function=work}": 2,
        "scaler_function_duration_quantile_seconds{function=work,quantile=0.5}": 0.25,
        "scaler_function_duration_quantile_seconds{function=work,quantile=0.95}": 1.5,
        "scaler_function_duration_quantile_seconds{function=work,quantile=1}": 2.0,
    }
    assert expected.items() <= found.items()


def test_reports_missing_state_before_the_first_report() -> None:
    monitor = PreparedMonitor()
    monitor.connected = False
    found = samples_of(ask("/metrics", monitor).text)
    assert set(found) == {"scaler_info{version=0.2.0}", "scaler_scheduler_up"}
    assert found["scaler_scheduler_up"] == 0


def test_names_with_any_characters_are_labels() -> None:
    model = filled_model()
    model.apply_status(status(11.0, functions=functions((f'a"b\\c\n{NASTY}', 1))))
    (label,) = [name for name in Scrapes(model).samples() if name.startswith("scaler_function_duration_seconds_count")]
    assert 'a"b\\c\n<img onerror' in label


def test_shares_have_the_group_the_key_and_the_client_as_labels() -> None:
    found = Scrapes(filled_model()).samples()
    start, labels = "scaler_share_", "{client=,group=desk,key=<img onerror"
    shares = {
        name.removeprefix(start).partition("{")[0]: value
        for name, value in found.items()
        if name.startswith(start) and labels in name
    }
    names = "weight", "max_slots", "slots", "used_slots", "ready", "slot_seconds_total", "cost_total", "stopped_total"
    assert shares == dict(zip(names, [2.0, 3.0, 2.5, 3.0, 9.0, 60.5, 1.25, 0.0], strict=True))
