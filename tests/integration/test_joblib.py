"""joblib and scikit-learn on a cluster of two workers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.waiting import until, wait_for_file

joblib: Any = importlib.import_module("joblib")
numpy: Any = importlib.import_module("numpy")
delayed: Any = joblib.delayed
importlib.import_module("scaler.joblib")  # registers its backend


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as connected:
        yield connected


@pytest.fixture
def on_scaler(client: Client) -> Iterator[None]:
    with joblib.parallel_config("scaler", client=client, n_jobs=-1):
        yield


def double(number: Any) -> Any:
    return number * 2


def pid(_: int) -> int:
    return os.getpid()


@pytest.mark.usefixtures("on_scaler")
def test_calls_run_on_the_workers_and_return_in_order() -> None:
    assert joblib.Parallel()(delayed(double)(number) for number in range(500)) == [2 * number for number in range(500)]
    assert os.getpid() not in joblib.Parallel()(delayed(pid)(number) for number in range(4))
    until(lambda: joblib.effective_n_jobs(-1) == 2)  # a worker of an earlier test may still be leaving
    assert joblib.Parallel(n_jobs=1)(delayed(pid)(number) for number in range(2)) == [os.getpid()] * 2


def test_single_parallel_accepts_the_cluster_and_options(
    cluster: SchedulerClusterCombo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALER_ADDRESS", "no such cluster")
    calls = [delayed(pid)(number) for number in range(3)]
    for where in ({"client": client}, {"address": cluster.get_address()}):
        assert os.getpid() not in joblib.Parallel(n_jobs=2, backend="scaler", tags="single", **where)(calls)
    assert {row.tags for row in client.tasks(tag="single")} == {"single"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        joblib.Parallel(n_jobs=2, backend="scaler", client=client, workers=3)(calls)


@pytest.mark.usefixtures("on_scaler")
def test_generators_yield_results_as_they_arrive(tmp_path: Path) -> None:
    for return_as, in_order in (("generator", True), ("generator_unordered", False)):
        gate = tmp_path / return_as
        calls = [delayed(double)(1), delayed(wait_for_file)(gate)]
        results = joblib.Parallel(return_as=return_as, batch_size=1)(iter(calls if in_order else reversed(calls)))
        assert next(results) == 2
        gate.touch()  # one worker waits for it: the other one must be free
        assert list(results) == [None]


@pytest.mark.usefixtures("on_scaler")
def test_exception_is_raised_and_cancels_the_rest(client: Client, tmp_path: Path) -> None:
    calls = [delayed(divmod)(1, 0), *[delayed(wait_for_file)(tmp_path / "never")] * 3]
    with pytest.raises(ZeroDivisionError):
        joblib.Parallel(batch_size=1)(calls)
    assert client.submit(double, 1).result(20) == 2, "the workers are free"


def nested(_: int) -> tuple[str, list[int]]:
    parallel = joblib.Parallel(n_jobs=4)
    backend = type(parallel._backend).__name__  # noqa: SLF001 (it has no other name)
    return backend, [*parallel(delayed(pid)(number) for number in range(3)), os.getpid()]


@pytest.mark.usefixtures("on_scaler")
def test_nested_calls_run_in_the_same_process() -> None:
    for name, pids in joblib.Parallel()(delayed(nested)(number) for number in range(3)):
        assert name == "SequentialBackend"
        assert len(set(pids)) == 1


def total(array: Any, other: Any = None) -> float:
    return float(array.sum() + (0 if other is None else other.sum()))


def test_large_arrays_are_sent_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    send_object = client._send_object  # noqa: SLF001

    def noting(value: Any) -> Any:
        sent.append(value)
        return send_object(value)

    monkeypatch.setattr(client, "_send_object", noting)
    array = numpy.ones(200_000)
    with joblib.parallel_config("scaler", client=client, n_jobs=2):
        calls = [delayed(total)(array, other=array) for _ in range(6)]
        assert joblib.Parallel()(calls) == [400_000.0] * 6
        assert [each is array for each in sent] == [True]
        assert joblib.Parallel(max_nbytes=None)(calls) == [400_000.0] * 6
        assert len(sent) == 1


def test_rejects_invalid_backend_arguments(client: Client) -> None:
    with pytest.raises(UsageError, match="not both"):
        joblib.parallel_config("scaler", client=client, address="tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match="no meaning"), joblib.parallel_config("scaler", client=client):
        joblib.Parallel(n_jobs=0)([delayed(double)(1)])


# -- scikit-learn


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("on_scaler")
def test_scikit_learn_gives_the_same_results_on_the_cluster() -> None:
    datasets, ensemble, linear, selection = (
        importlib.import_module(f"sklearn.{name}")
        for name in ("datasets", "ensemble", "linear_model", "model_selection")
    )
    x, y = datasets.make_classification(200, 8, random_state=0)
    grid = {"C": [0.01, 0.1, 1.0]}

    def searched(n_jobs: int) -> Any:
        return selection.GridSearchCV(linear.LogisticRegression(), grid, cv=3, n_jobs=n_jobs).fit(x, y)

    here, there = searched(1), searched(-1)
    assert there.best_params_ == here.best_params_
    assert there.cv_results_["mean_test_score"].tolist() == here.cv_results_["mean_test_score"].tolist()
    scores = [selection.cross_val_score(linear.LogisticRegression(), x, y, cv=3, n_jobs=jobs) for jobs in (1, -1)]
    assert scores[0].tolist() == scores[1].tolist()
    forests = [ensemble.RandomForestClassifier(8, random_state=0, n_jobs=jobs).fit(x, y) for jobs in (1, -1)]
    assert (forests[0].predict_proba(x) == forests[1].predict_proba(x)).all()
