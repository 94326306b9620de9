"""Runs joblib (and scikit-learn) on a cluster: import this, then `joblib.parallel_config("scaler")`. Needs joblib."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from joblib import parallel_config, register_parallel_backend
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend

from scaler.client.client import Client, shared_client
from scaler.client.connect import is_inside_task
from scaler.client.options import options_of
from scaler.client.tasks import ObjectReference
from scaler.errors import UsageError
from scaler.host import usable_cpus
from scaler.serialization import name_of

DEFAULT_LARGE_BYTES = 1 << 20  # larger arguments are sent once per call, unless max_nbytes is set

_OF_OTHER_BACKENDS = frozenset({"context", "mmap_mode", "prefer", "require", "temp_folder", "verbose"})

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class ScalerBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """The joblib backend named "scaler". Each call of `Parallel` has its own instance."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1
    MIN_IDEAL_BATCH_DURATION = 0.05
    MAX_IDEAL_BATCH_DURATION = 1.0

    def __init__(
        self,
        nesting_level: int | None = None,
        *,
        client: Client | None = None,
        address: str | None = None,
        **options: Any,
    ) -> None:
        """Run on the cluster of `client` or at `address`; default: the cluster of `Client()`, with one shared client.

        options: keywords of `Client.submit_verbose`, for each batch of calls. Raises UsageError and the errors of
        `Client`.
        """
        super().__init__(nesting_level=nesting_level)
        self._use(client, address, options)
        self._slots = 0
        self._large_bytes: int | None = DEFAULT_LARGE_BYTES
        self._futures: set[Future[Any]] = set()
        self._shared: dict[int, tuple[Any, ObjectReference]] = {}  # large arguments of the call by id
        self._callbacks: ThreadPoolExecutor | None = None  # callbacks must not block the client's thread
        self.parallel: Any = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of concurrent batches: `n_jobs`, or for -1 the capacity of the cluster.

        The capacity is the number of slots, or the number that managers may start, if larger; at least 2, because
        joblib runs a single job in this process. Other negative numbers leave slots unused, as in joblib's backends.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        if not self._slots:
            self._slots = _slots_of(self._client)
        return max(2, self._slots + 1 + n_jobs)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        max_nbytes: int | None = DEFAULT_LARGE_BYTES,
        *,
        client: Client | None = None,
        address: str | None = None,
        **others: Any,
    ) -> int:
        """Serve a `Parallel`. If already serving another call, raises FallbackToBackend with a new backend. Accepts all
        arguments of `Parallel(backend="scaler", ...)`, including arguments for other backends."""
        options = {name: value for name, value in others.items() if name not in _OF_OTHER_BACKENDS}
        if self.parallel is not None and self.parallel is not parallel:
            other = ScalerBackend(self.nesting_level, client=self._known_client, address=self._address, **self._options)
            other._slots = self._slots
            other.inner_max_num_threads = self.inner_max_num_threads
            raise FallbackToBackend(other)
        if client is None and address is None:
            client, address = self._known_client, self._address
        self._use(client, address, {**self._options, **options})
        self.parallel = parallel
        self._large_bytes = max_nbytes
        return self.effective_n_jobs(n_jobs)

    def start_call(self) -> None:
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="scaler-joblib")

    def stop_call(self) -> None:
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False)
        self._callbacks = None
        self._shared.clear()

    def submit(self, func: Any, callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        """Submit a batch of calls. callback: called with the completed future."""
        calls: list[Call] = [
            (function, tuple(map(self._sent, args)), {name: self._sent(each) for name, each in kwds.items()})
            for function, args, kwds in func.items
        ]
        options = {"name": name_of(calls[0][0]), **self._options}
        future = self._client.submit_verbose(run_batch, (calls, self.inner_max_num_threads), **options)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        callbacks = self._callbacks
        if callback is not None and callbacks is not None:
            future.add_done_callback(lambda ended: _call_in(callbacks, callback, ended))
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002 (joblib's own: it stays ready)
        """Cancel unfinished batches, even running ones."""
        for future in list(self._futures):
            future.cancel()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Run nested calls of `Parallel` sequentially in the same process."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def _use(self, client: Client | None, address: str | None, options: dict[str, Any]) -> None:
        if client is not None and address is not None:
            raise UsageError("the backend takes a client or an address, not both")
        options_of(options, "the backend")  # type: ignore[arg-type]
        self._known_client = client
        self._address = address
        self._options = options

    @property
    def _client(self) -> Client:
        """The client for the calls, created lazily because joblib chooses it late."""
        if self._known_client is None:
            self._known_client, self._address = shared_client(self._address), None
        return self._known_client

    def _sent(self, argument: Any) -> Any:
        if self._large_bytes is None or size_in_memory(argument) < self._large_bytes:
            return argument
        known = self._shared.get(id(argument))
        if known is None:
            reference = self._client._send_object(argument)  # noqa: SLF001 (goes when the call ends, not with the client)
            known = self._shared[id(argument)] = argument, reference
        return known[1]


def _slots_of(client: Client) -> int:
    if is_inside_task():  # its client cannot query the cluster
        return usable_cpus()
    cluster = client.cluster()
    slots = sum(len(worker.processors) for worker in cluster.workers)
    return max(slots, sum(max(0, manager.max_slots) for manager in cluster.managers))


def _call_in(callbacks: ThreadPoolExecutor, callback: Callable[[Future[Any]], object], ended: Future[Any]) -> None:
    try:
        callbacks.submit(callback, ended)
    except RuntimeError:  # the call is over, so joblib ignores the result
        return


def size_in_memory(value: Any) -> int:
    """Return the approximate bytes of an array, table, sparse matrix, or string; 0 for other values."""
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    usage = getattr(value, "memory_usage", None)  # pandas
    if callable(usage) and not isinstance(value, type):
        total = usage()
        return int(total.sum() if hasattr(total, "sum") else total)
    data = getattr(value, "data", None)  # sparse matrix
    size = getattr(data, "nbytes", None) if hasattr(value, "nnz") else None
    return size if isinstance(size, int) else 0


def run_batch(calls: list[Call], threads: int | None) -> list[Any]:
    """Run calls sequentially and return their results. threads: limit for OpenMP and BLAS, needs threadpoolctl."""
    with _limited(threads), parallel_config(SequentialBackend(nesting_level=1), n_jobs=1):
        return [function(*args, **kwds) for function, args, kwds in calls]


def _limited(threads: int | None) -> AbstractContextManager[object]:
    if threads is None:
        return nullcontext()
    try:
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 (few calls need it)
    except ImportError:
        raise UsageError(
            "inner_max_num_threads needs threadpoolctl on the workers: pip install threadpoolctl"
        ) from None
    limits: AbstractContextManager[object] = threadpool_limits(threads)
    return limits


register_parallel_backend("scaler", ScalerBackend)
