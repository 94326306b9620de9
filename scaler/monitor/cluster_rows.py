"""The schema of monitor data: the only declaration of every row's columns. Pure.

A row is a NamedTuple. The scheduler sends its fields, which are columns unless marked `INTERNAL`. Properties whose
return type carries a `Column` are columns that the receiver computes. The scheduler, the model, the API and its OpenAPI
document, the metrics, scaler_top, and the page all use these declarations. On the wire, a table is a list of columns
and rows of values, because JSON lists take a third of the time of JSON objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from scaler.monitor.columns import INTERNAL, Column, Top, gauge
from scaler.monitor.data_rows import LEFT_ERROR, CallRow, LinkRow, ObjectRow, PairRow, StoreRow, done_percent
from scaler.texts import pattern

RUNNING = "running"
RETRYING = "retrying"
"""An attempt failed and will be retried."""
DONE = "done"
CANCELLED = "cancelled"
READY, WAITING, ASSIGNED, SUSPENDED = "ready", "waiting", "assigned", "suspended"
"""States of live tasks that only a search finds. assigned: queued on a worker."""
LIVE = (RUNNING, RETRYING)
NO_FAILURE = (*LIVE, READY, WAITING, ASSIGNED, SUSPENDED, DONE, CANCELLED)
"""States other than failures. All other states are names of outcomes."""


TAGS_BETWEEN = ", "


class TaskRow(NamedTuple):
    """Last reported state of a task. started_at: 0 while it waits. ended_at: None while it runs."""

    id: Annotated[str, Column("Task")] = ""
    state: Annotated[str, Column("State")] = RUNNING
    function: Annotated[str, Column("Function")] = ""
    worker: Annotated[str, Column("Worker", rank=2)] = ""
    client: Annotated[str, Column("Client", rank=3)] = ""
    attempt: Annotated[int, Column("Attempt", "count", 3, zero_is_none=True)] = 0
    max_attempts: Annotated[int, Column(help="Maximum number of attempts, derived from retries")] = 0
    ended_at: Annotated[float | None, Column("Ended", "time", 2)] = None
    duration_us: Annotated[int, Column("Duration", "micros", zero_is_none=True)] = 0
    cpu_us: Annotated[int, Column("CPU", "micros", 3, zero_is_none=True)] = 0
    peak_bytes: Annotated[int, Column("Peak mem.", "bytes", 2, zero_is_none=True)] = 0
    inputs_us: Annotated[int, Column(help="Part of the duration spent waiting for stored inputs")] = 0
    inputs_bytes: Annotated[int, Column(help="Size of these inputs")] = 0
    failed_input: Annotated[str, Column(help="The failed task whose result was needed")] = ""
    text: Annotated[str, Column("Error", rank=2, help="Error of a failed task, on one line")] = ""
    traceback: Annotated[str, Column(whole=True)] = ""
    lane: Annotated[int, Column(help="Number (from 1) of the processor that ran the task; 0: none")] = 0
    failures: Annotated[int, Column(help="Earlier attempts that raised an exception selected by retry_on")] = 0
    losses: Annotated[int, Column(help="Earlier attempts whose process or worker died")] = 0
    tags: Annotated[str, Column(help="Tags, separated by commas")] = ""
    calls: Annotated[int, Column(help="Ended calls of a failed chunk; 0: unknown, or a single call")] = 0
    failed_calls: Annotated[int, Column(help="Failed calls among them")] = 0
    started_at: float = 0.0

    @property
    def failed(self) -> Annotated[bool, Column()]:
        return self.state not in NO_FAILURE

    @property
    def failed_share(self) -> float:
        """Share of the task that failed: for a chunk, the share of its calls."""
        if not self.failed:
            return 0.0
        return min(1.0, self.failed_calls / self.calls) if self.calls else 1.0

    def has_tag(self, tag: str) -> bool:
        return f"{TAGS_BETWEEN}{tag}{TAGS_BETWEEN}" in f"{TAGS_BETWEEN}{self.tags}{TAGS_BETWEEN}"


class FailureRow(NamedTuple):
    """Failed tasks of one function with equal messages, ignoring numbers, ids, and addresses."""

    key: str = ""
    times: Annotated[int, Column("Times", "count")] = 0
    text: Annotated[str, Column("Error", help="… replaces numbers, ids, and addresses that differ")] = ""
    function: Annotated[str, Column("Function")] = ""
    first_at: Annotated[float, Column("First", "time", 3)] = 0.0
    last_at: Annotated[float, Column("Last", "time", 2)] = 0.0
    task: Annotated[str, Column(help="The last failed task")] = ""

    def joined(self, later: FailureRow) -> FailureRow:
        return later._replace(
            times=self.times + later.times,
            text=self.text if self.text == later.text else pattern(later.text),
            first_at=min(self.first_at, later.first_at),
            last_at=max(self.last_at, later.last_at),
        )


class FindingRow(NamedTuple):
    """A suggested change to a cluster or program. text: evidence with figures. page: page of the documentation."""

    kind: Annotated[str, Column("Kind", rank=3)] = ""
    subject: Annotated[str, Column("Subject", help="The function, worker, or worker manager")] = ""
    text: Annotated[str, Column("Evidence", help="What was seen")] = ""
    advice: Annotated[str, Column("Advice", help="What to change")] = ""
    page: Annotated[str, Column(help="Path of the documentation page in the repository")] = ""
    slots_lost: Annotated[float, Column(help="Slots that do no useful work as a result", volatile=True)] = 0.0


class ProcessorRow(NamedTuple):
    """A processor of a worker. running: task id, or ""."""

    pid: Annotated[int, Column("Process")] = 0
    running: Annotated[str, Column("Task")] = ""
    function: Annotated[str, Column("Function")] = ""
    running_seconds: Annotated[float, Column("For", "seconds", volatile=True)] = 0.0
    cpu_percent: Annotated[float, Column("CPU", "percent", volatile=True)] = 0.0
    rss_bytes: Annotated[int, Column("Memory", "bytes")] = 0
    initialized: bool = False
    suspended: bool = False
    lane: Annotated[int, Column(help="Row in the worker's timeline")] = 0

    @property
    def itl(self) -> str:
        """I, T, L flags such as `110`: is initialized, has a task, has a slot for the task."""
        return _bits(self.initialized, bool(self.running), bool(self.running) and not self.suspended)


_CPU_HELP = "CPU use of all processors; 100% is one CPU"
_CPU = Column("CPU", "percent", 1, _CPU_HELP, Top(4, "cpu", 6, 2, "c"), after="sent", volatile=True)
# Pages shared between processors count once per processor.
_RSS = Column("Memory", "bytes", 1, "Memory of all processors", Top(5, "rss", 6, 3, "m"), after="cpu_percent")
_WORKER_PEAK_HELP = "Peak memory of all processors since the worker started"
_WORKER_PEAK = Column("Peak mem.", "bytes", 3, _WORKER_PEAK_HELP, Top(6, "peak", 6, 18), after="rss_bytes")
_WORKER_MEAN_HELP = "Mean memory of all processors since the worker started"
_WORKER_MEAN = Column("Mean mem.", "bytes", 3, _WORKER_MEAN_HELP, after="memory_peak_bytes", zero_is_none=True)
_AGENT_CPU = Column("Agent CPU", "percent", 3, "CPU use of the agent", Top(2, "agt_cpu", 7, 11, "C"), volatile=True)
_AGENT_RSS = Column("Agent mem.", "bytes", 3, "Memory of the agent", Top(3, "agt_rss", 7, 12, "M"))
_LAG_HELP = "Round trip from the worker to the scheduler"
_LAG = Column("Round trip", "seconds", 3, _LAG_HELP, Top(11, "lag", 5, 9, "l"), volatile=True)
_CLOCK_ERROR = Column(unit="seconds", help="Uncertainty of the offset; 0: unknown")
_OFFERS = Column("Capabilities", "text", 3, "What it offers", Top(16, "capabilities", 12, 17))
_STATE_HELP = "away: out of contact; held: too many failures, no tasks; ends: no new tasks"
_STATE = Column(help=_STATE_HELP, top=Top(1, "state", 5, 1), whole=True)
_ITL_HELP = "I: all processors initialized; T: any has a task; L: any holds a slot"
_ITL = Column("", "flags", 1, _ITL_HELP, Top(12, "ITL", 3, 10), whole=True)
_RUNS = Column(help="Longest-running task; +2: two more are running", top=Top(17, "function", 12, 6), whole=True)
_RUNS_FOR = Column("", "seconds", 1, "For how long", Top(18, "seconds", 7, 7), whole=True, zero_is_none=True)


_HEAT_HELP = "Severity of the worst figure, from 0 to 100"
_HEAT = Column("Heat", "heat", 2, _HEAT_HELP, Top(19, "heat", 4, 16, "h"), after="queued")
_FAILURES_HEAT = Column("Failing", "heat", 3, "Failure rate in excess of other workers' rate")
_SLOWNESS_HEAT = Column("Slow", "heat", 3, "Task duration relative to other workers, per function")
_MEMORY_HEAT = Column("Memory full", "heat", 3, "Memory use of the machine or container")
_CPU_HEAT = Column("CPU denied", "heat", 3, "Share of time waiting for a CPU because of a quota or the hypervisor")
_FAULT = Column("What is wrong", "text", 1, "The most serious problem, with its values", Top(20, "wrong", 12, 19))


class WorkerRow(NamedTuple):
    id: str = ""
    name: Annotated[str, Column("Worker", help="Manager and number", top=Top(0, "worker", 14, 0, "n"))] = ""
    host: Annotated[str, Column("Host", rank=2, top=Top(13, "host", 6, 14))] = ""
    pid: Annotated[int, Column("Process", "text", 3, "Process id of the worker's agent", Top(14, "pid", 7, 15))] = 0
    slots: Annotated[int, Column("Slots", "count", 2)] = 0
    free: Annotated[int, Column("Free", "count", 2, "Slots without a task", Top(7, "free", 5, 4, "f"))] = 0
    queued: Annotated[int, Column("Queued", "count", 1, "Tasks waiting on it", Top(9, "queued", 6, 5, "d"))] = 0
    suspended: Annotated[int, Column("Susp.", "count", 3, "Suspended tasks", Top(10, "suspended", 9, 13))] = 0
    sent: Annotated[int, Column("Sent", "count", 2, "Tasks sent to the worker so far", Top(8, "sent", 6, 8, "w"))] = 0
    agent_cpu_percent: Annotated[float, _AGENT_CPU] = 0.0
    agent_rss_bytes: Annotated[int, _AGENT_RSS] = 0
    latency_seconds: Annotated[float, _LAG] = 0.0
    clock_seconds: Annotated[float, Column("Clock", "seconds", 3, "Clock offset from the scheduler")] = 0.0
    clock_error_seconds: Annotated[float, _CLOCK_ERROR] = 0.0
    manager: Annotated[str, Column("Manager", "text", 3, "What started it", Top(15, "manager", 9, 16))] = ""
    capabilities: Annotated[str, _OFFERS] = ""
    unit: str = ""
    assigned: int = 0
    draining: bool = False
    quarantined: bool = False
    connected: bool = True
    memory_peak_bytes: Annotated[int, _WORKER_PEAK] = 0
    memory_mean_bytes: Annotated[int, _WORKER_MEAN] = 0
    failures_heat: Annotated[int | None, _FAILURES_HEAT] = None
    slowness_heat: Annotated[int | None, _SLOWNESS_HEAT] = None
    lag_heat: Annotated[int | None, Column("Late", "heat", 3, "Round trip relative to other workers")] = None
    memory_heat: Annotated[int | None, _MEMORY_HEAT] = None
    cpu_heat: Annotated[int | None, _CPU_HEAT] = None
    disk_heat: Annotated[int | None, Column("Disk full", "heat", 3, "Disk use")] = None
    fault: Annotated[str, _FAULT] = ""
    processors: tuple[ProcessorRow, ...] = ()

    @property
    def heat(self) -> Annotated[int, _HEAT]:
        heats = self.failures_heat, self.slowness_heat, self.lag_heat, self.memory_heat, self.cpu_heat, self.disk_heat
        return max((each for each in heats if each is not None), default=0)

    @property
    def cpu_percent(self) -> Annotated[float, _CPU]:
        return sum(processor.cpu_percent for processor in self.processors)

    @property
    def rss_bytes(self) -> Annotated[int, _RSS]:
        return sum(processor.rss_bytes for processor in self.processors)

    @property
    def state(self) -> Annotated[str, _STATE]:
        if not self.connected:
            return "away"
        if self.quarantined:
            return "held"
        return "ends" if self.draining else ""

    @property
    def itl(self) -> Annotated[str, _ITL]:
        each = [processor.itl for processor in self.processors]
        ready = bool(each) and all(bits[0] == "1" for bits in each)
        return _bits(ready, any(bits[1] == "1" for bits in each), any(bits[2] == "1" for bits in each))

    @property
    def function(self) -> Annotated[str, _RUNS]:
        if not self.busy:
            return ""
        name = self.busy[0].function or f"task {self.busy[0].running[:8]}"
        return f"{name} +{len(self.busy) - 1}" if len(self.busy) > 1 else name

    @property
    def function_seconds(self) -> Annotated[float, _RUNS_FOR]:
        return self.busy[0].running_seconds if self.busy else 0.0

    @property
    def busy(self) -> list[ProcessorRow]:
        return sorted((each for each in self.processors if each.running), key=lambda each: -each.running_seconds)


WORKER_COLUMNS = (*WorkerRow._fields[:-1], (WorkerRow._fields[-1], ProcessorRow._fields))
"""Columns sent by the scheduler. Processors are a nested table."""


_DESIRED = Column("Desired", "count", 1, "Units requested by the scheduler", metric="units_desired")
_KEPT = Column("Kept", "count", 3, "Units that run only as warm capacity", zero_is_none=True)
_SPENT = Column("Spent", "money", 2, "Cost of its units in this run", metric="spent_total", zero_is_none=True)


class ManagerRow(NamedTuple):
    """A worker manager. desired: None while the scheduler does not control the number of units."""

    id: Annotated[str, Column("Manager")] = ""
    kind: Annotated[str, Column("Kind", rank=2)] = ""
    desired: Annotated[int | None, _DESIRED] = None
    running: Annotated[int, Column("Running", "count")] = 0
    pending: Annotated[int, Column("Pending", "count", help="Units being started")] = 0
    waiting: Annotated[int, Column("In queue", "count", 2, help="Starting units that wait in a queue")] = 0
    kept: Annotated[int, _KEPT] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    unit_slots: Annotated[int, Column("Slots/unit", "count", 3)] = 0
    max_slots: Annotated[int, Column("Most slots", "count", 3)] = 0
    capabilities: Annotated[str, Column("Capabilities", rank=3)] = ""
    unit_price: Annotated[float, Column("Price/h", "money", 3, "Price per unit, or per task", zero_is_none=True)] = 0.0
    spent: Annotated[float, _SPENT] = 0.0
    reason: Annotated[str, Column("Why", help="Why the scaling policy wants this many units")] = ""
    trouble: str = ""
    units: int = 0


class ClientRow(NamedTuple):
    name: Annotated[str, Column("Client")] = ""
    id: Annotated[str, Column("Id", rank=3)] = ""
    queued: Annotated[int, Column("Queued", "count")] = 0
    running: Annotated[int, Column("Running", "count")] = 0
    ended: Annotated[int, Column("Ended", "count")] = 0
    failed: Annotated[int, Column("Failed", "count")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count", 2, zero_is_none=True)] = 0
    tasks: Annotated[int, Column(help="Unfinished calls")] = 0


_PROGRESS_HELP = "Finished calls, of all since the function was idle; bar: done, failed, cancelled, running, queued"
_PROGRESS = Column("Progress", "percent", 1, _PROGRESS_HELP, after="name", volatile=True)
_LEFT_HELP = "Estimated time until the current calls end"
_LEFT = Column("Time left", "seconds", 1, _LEFT_HELP, metric="function_left_seconds", after="name", volatile=True)
_RATE = Column("Tasks/s", "count", 2, "That ended lately", after="failed", volatile=True, zero_is_none=True)
_P50_HELP = "Median duration of its calls, excluding waits for stored inputs; unknown for chunks"
_P95_HELP = "95th percentile; nearly exact for similar calls; unknown for chunks"
_MAX = Column("Max", "seconds", 2, "The longest call; unknown for chunks", zero_is_none=True)
_MEAN = Column("Mean", "seconds", 2, after="seconds_total", zero_is_none=True)
_BEFORE_HELP = "p50 about a day ago, or else in the last run; null if unknown"
_TREND = Column("Trend", "percent", 2, "p50 relative to a day ago, or else to the last run", after="max_seconds")
_PEAK_HELP = "Peak memory of a processor while only this function's tasks ran; empty if unknown"
_MEAN_MEMORY = Column("Mean mem.", "bytes", 3, "Mean memory of a processor with running tasks", zero_is_none=True)


class FunctionRow(NamedTuple):
    """Calls of one function: its tasks, and each item of a map's chunks. ended: includes failed and cancelled calls.
    A job consists of all calls since the function last had no live calls. The receiver sets the last six columns."""

    name: Annotated[str, Column("Function")] = ""
    queued: Annotated[int, Column("Queued", "count", 2)] = 0
    running: Annotated[int, Column("Running", "count", 2)] = 0
    ended: Annotated[int, Column("Ended", "count", 2)] = 0
    failed: Annotated[int, Column("Failed", "count", metric="function_tasks_failed_total")] = 0
    cancelled: Annotated[int, Column("Cancelled", "count", 2, zero_is_none=True)] = 0
    untimed: Annotated[int, Column(help="Ended calls without a duration, such as calls that never ran")] = 0
    has_chunks: Annotated[bool, Column(help="Some tasks are map chunks, which are timed as a whole")] = False
    seconds_total: Annotated[float, Column("Time in all", "seconds", 2)] = 0.0
    p50_seconds: Annotated[float, Column("p50", "seconds", 2, _P50_HELP, zero_is_none=True)] = 0.0
    p95_seconds: Annotated[float, Column("p95", "seconds", 2, _P95_HELP, zero_is_none=True)] = 0.0
    max_seconds: Annotated[float, _MAX] = 0.0
    p50_before_seconds: Annotated[float | None, Column(unit="seconds", help=_BEFORE_HELP)] = None
    memory_peak_bytes: Annotated[int, Column("Peak mem.", "bytes", 2, _PEAK_HELP, zero_is_none=True)] = 0
    memory_mean_bytes: Annotated[int, _MEAN_MEMORY] = 0
    job_ended: Annotated[int, Column(help="Ended calls of the current or last job")] = 0
    job_failed: Annotated[int, Column(help="Failed calls in job_ended")] = 0
    job_cancelled: Annotated[int, Column(help="Cancelled calls in job_ended")] = 0
    tasks_per_second: Annotated[float, _RATE] = 0.0
    left_seconds: Annotated[float | None, _LEFT] = None
    left_error_seconds: Annotated[float | None, LEFT_ERROR] = None

    @property
    def mean_seconds(self) -> Annotated[float, _MEAN]:
        timed = self.ended - self.untimed
        return self.seconds_total / timed if timed > 0 else 0.0

    @property
    def trend_percent(self) -> Annotated[float | None, _TREND]:
        before = self.p50_before_seconds
        return round(100 * (self.p50_seconds / before - 1), 1) if before and self.p50_seconds else None

    @property
    def live(self) -> int:
        return self.queued + self.running

    @property
    def progress_percent(self) -> Annotated[float | None, _PROGRESS]:
        return done_percent(self.job_ended, self.job_failed, self.job_cancelled, self.live)


class WaitingRow(NamedTuple):
    """Queued tasks of one function with equal needs and priority, not assigned to a worker. ready: tasks with complete
    dependencies. oldest: id of the task that has waited longest (approximately). reason: why that task waits."""

    id: str = ""
    function: Annotated[str, Column("Function")] = ""
    capabilities: Annotated[str, Column("Needs", help="Capabilities that a worker must offer")] = ""
    priority: Annotated[int, Column("Priority", "count", 2, zero_is_none=True)] = 0
    tasks: Annotated[int, Column("Tasks", "count")] = 0
    ready: Annotated[int, Column("Ready", "count", 2, "Tasks that wait only for a slot")] = 0
    age_seconds: Annotated[float, Column("Oldest", "seconds", help="Age of the oldest", volatile=True)] = 0.0
    reason: Annotated[str, Column("Why the oldest waits")] = ""
    oldest: str = ""


class DecisionRow(NamedTuple):
    at: Annotated[float, Column("When", "time")] = 0.0
    manager: Annotated[str, Column("Manager")] = ""
    units: Annotated[int, Column("Units", "count")] = 0
    draining: Annotated[int, Column("Draining", "count", 2)] = 0
    reason: Annotated[str, Column("Why")] = ""


class IncidentRow(NamedTuple):
    """A problem that deserves an operator's attention, such as a lost worker, a retried task, or a refused peer."""

    at: Annotated[float, Column("When", "time")] = 0.0
    kind: Annotated[str, Column("What")] = ""
    subject: Annotated[str, Column("Subject")] = ""
    text: Annotated[str, Column("Text")] = ""


class SchedulerRow(NamedTuple):
    cpu_percent: Annotated[float, gauge("scheduler_cpu_ratio", "CPU use of the scheduler, in CPUs.", "percent")] = 0.0
    rss_bytes: Annotated[int, gauge("scheduler_resident_memory_bytes", "Memory of the scheduler.")] = 0
    uptime_seconds: Annotated[float, gauge("scheduler_uptime_seconds", "Since the scheduler's start.")] = 0.0
    step_seconds_max: Annotated[float, gauge("scheduler_step_seconds_max", "The longest recent step.")] = 0.0
    insecure_no_auth: Annotated[bool, gauge("insecure_no_auth", "1 while any process may connect.")] = False
    journal_bytes: Annotated[int, gauge("scheduler_journal_bytes", "Disk space of the scheduler's journal.")] = 0
    disk_failure: Annotated[
        str, gauge("scheduler_disk_failed", "1 while new tasks are refused or wait because of the disk.", "text")
    ] = ""
    lag_seconds_max: Annotated[float, gauge("scheduler_lag_seconds_max", "Longest recent loop delay.")] = 0.0
    host: str = ""
    extensions: Annotated[str | None, Column(help="Running extensions, separated by spaces; None: unknown")] = None


class StorageRow(NamedTuple):
    """The object storage. limit_bytes: 0 means unlimited."""

    address: str = ""
    objects: Annotated[int, gauge("object_storage_objects", "Objects in the object storage.")] = 0
    bytes: Annotated[int, gauge("object_storage_bytes", "Bytes of these objects in memory.")] = 0
    limit_bytes: Annotated[
        int, Column(help="Maximum bytes in the object storage.", metric="object_storage_limit_bytes", zero_is_none=True)
    ] = 0
    spilled_bytes: Annotated[int, gauge("object_storage_spilled_bytes", "Bytes of objects in spill_directory.")] = 0
    state_bytes: Annotated[int, gauge("object_storage_state_bytes", "Disk space of objects in state_directory.")] = 0
    hits: Annotated[int, Column(help="Gets served locally")] = 0
    misses: Annotated[int, Column(help="Gets served after a fetch from a host's store")] = 0
    disk_failure: Annotated[
        str, gauge("object_storage_disk_failed", "1 while objects are refused because the disk has failed.", "text")
    ] = ""
    latency_seconds: Annotated[
        float, gauge("object_storage_latency_seconds", "Round trip from the scheduler to the object storage.")
    ] = 0.0
    at: Annotated[float, Column("As of", "time", help="Time of the figures; 0: none received.", volatile=True)] = 0.0


_KEPT_HELP = "Cost per hour of units that run only because of minimum_units, warm_units, or buffer_units."
_NEXT = Column("Next limit", help="The period whose limit is reached first at the current cost")


def _money(title: str, rank: int, text: str, metric: str) -> Column:
    return Column(title, "money", rank, text, metric=metric)


class SpendingRow(NamedTuple):
    """Cost of units, in the currency of unit_price. Limits are set by spend_limit; 0: no limit."""

    per_hour: Annotated[float, _money("Per hour", 1, "Cost per hour of all current units.", "spending_per_hour")] = 0.0
    kept_per_hour: Annotated[float, _money("Kept/hour", 3, _KEPT_HELP, "spending_kept_per_hour")] = 0.0
    hour: Annotated[float, _money("Hour", 1, "Cost of units in the last hour.", "spent_hour")] = 0.0
    day: Annotated[float, _money("Day", 3, "Cost of units in the last 24 hours.", "spent_day")] = 0.0
    today: Annotated[float, _money("Today", 1, "Cost of units since midnight.", "spent_today")] = 0.0
    run: Annotated[float, _money("Run", 1, "Cost of units in this run.", "spent_run")] = 0.0
    forecast: Annotated[
        float | None, _money("To come", 3, "Estimated cost of the current work.", "spending_forecast")
    ] = 0.0
    hour_limit: Annotated[float, _money("Limit/hour", 2, "spend_limit per hour, 0: none.", "spend_limit_hour")] = 0.0
    day_limit: Annotated[float, _money("Limit/day", 2, "spend_limit per day, 0: none.", "spend_limit_day")] = 0.0
    run_limit: Annotated[float, _money("Limit/run", 2, "spend_limit per run, 0: none.", "spend_limit_run")] = 0.0
    next_limit: Annotated[str, _NEXT] = ""
    limit_seconds: Annotated[float | None, Column("Reached in", "seconds", help="Time until the next limit")] = None
    reached: Annotated[str, Column("Reached", help="1 while a limit is reached.", metric="spend_limit_reached")] = ""


class TaskCounts(NamedTuple):
    """Calls by current state, and by outcome since the scheduler's start. A task is one call, or several if it is a
    chunk of a map. One call of a running chunk counts as running, and the rest as assigned."""

    waiting: int = 0
    ready: int = 0
    assigned: int = 0
    running: int = 0
    suspended: int = 0
    ended: Mapping[str, int] = {}

    @property
    def queued(self) -> Annotated[int, Column(help="Tasks that are waiting to run")]:
        return self.waiting + self.ready + max(0, self.assigned - self.running)

    @property
    def ended_total(self) -> Annotated[int, Column()]:
        return sum(self.ended.values())

    @property
    def failed_total(self) -> Annotated[int, Column()]:
        return sum(number for state, number in self.ended.items() if state not in NO_FAILURE)


class Totals(NamedTuple):
    """Total counts. The lists of rows may be shorter."""

    workers: Annotated[int, gauge("workers", "Connected workers.")] = 0
    slots: Annotated[int, gauge("slots", "Slots of all workers.")] = 0
    draining: Annotated[int, gauge("workers_draining", "Workers that get no more tasks.")] = 0
    disconnected: Annotated[int, gauge("workers_disconnected", "Workers out of contact.")] = 0
    clients: Annotated[int, gauge("clients", "Connected clients.")] = 0
    managers: int = 0
    functions: int = 0
    waiting: Annotated[int, Column(help="Groups of waiting tasks")] = 0
    stores: Annotated[int, gauge("stores", "Object stores: the object storage and the hosts' stores.")] = 0
    pairs: Annotated[int, Column(help="Pairs of stores with traffic, or without a connection")] = 0
    objects: Annotated[int, Column(help="Objects with a known location")] = 0
    links: Annotated[int, Column(help="Connections to the scheduler")] = 0
    calls: Annotated[int, Column(help="Calls retained by the scheduler")] = 0
    unreachable: Annotated[int, gauge("stores_unreachable", "Pairs of stores that cannot reach each other.")] = 0
    moved_bytes: Annotated[int, Column("", "bytes", help="Bytes that stores fetched from each other")] = 0
    memory_kills: Annotated[int, gauge("memory_kills_total", "Processors ended because of their memory.")] = 0
    processors_replaced: Annotated[int, gauge("processors_replaced_total", "Processors replaced between tasks.")] = 0


class Status(NamedTuple):
    """The complete state at one point in time. incarnation: changes with each start of the scheduler."""

    at: float = 0.0
    scheduler: SchedulerRow = SchedulerRow()
    storage: StorageRow = StorageRow()
    spending: SpendingRow = SpendingRow()
    tasks: TaskCounts = TaskCounts()
    totals: Totals = Totals()
    without_workers: Annotated[str, Column(help="Why no worker is connected, as TITLE: TEXT; empty if one is")] = ""
    sent: Mapping[str, int] = {}
    received: Mapping[str, int] = {}
    incarnation: Annotated[int, INTERNAL] = 0
    workers: Annotated[tuple[WorkerRow, ...], INTERNAL] = ()
    clients: Annotated[tuple[ClientRow, ...], INTERNAL] = ()
    managers: Annotated[tuple[ManagerRow, ...], INTERNAL] = ()
    functions: Annotated[tuple[FunctionRow, ...], INTERNAL] = ()
    waiting: Annotated[tuple[WaitingRow, ...], INTERNAL] = ()
    stores: Annotated[tuple[StoreRow, ...], INTERNAL] = ()
    pairs: Annotated[tuple[PairRow, ...], INTERNAL] = ()
    objects: Annotated[tuple[ObjectRow, ...], INTERNAL] = ()
    links: Annotated[tuple[LinkRow, ...], INTERNAL] = ()
    calls: Annotated[tuple[CallRow, ...], INTERNAL] = ()


_AGE = Column(help="Age of the state behind all other metrics.", metric="state_age_seconds", volatile=True)


class ConnectionRow(NamedTuple):
    """The web server's connection to the scheduler. age_seconds: age of the last state; None before the first."""

    connected: Annotated[bool, gauge("scheduler_up", "1 while the scheduler is connected.")] = False
    address: str = ""
    trouble: Annotated[str, Column(help="Why the scheduler is not connected")] = ""
    incarnation: str = ""
    age_seconds: Annotated[float | None, _AGE] = None
    interval_seconds: float = 0.0
    task_rows: Annotated[int, Column(help="Number of recent tasks that a page lists")] = 0
    version: str = ""


def _bits(*flags: bool) -> str:
    return "".join("1" if flag else "0" for flag in flags)
