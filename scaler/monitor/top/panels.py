"""What stands around the table of workers: the four panels, the totals, counts by client and function. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from scaler.monitor.top import formats
from scaler.monitor.top.table import BY_KEY
from scaler.protocol.monitor_rows import CANCELLED, DONE, ManagerRow, Status

BAR = " | "
KEYS = " ".join(f"{column.title}[{key}]" for key, column in BY_KEY.items())
MORE_KEYS = "other columns[< >] filter[/] freeze[space] detail[enter] help[?] quit[q]"

Pairs = Sequence[tuple[str, str]]


_COUNTS = "queued    run  ended failed"


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled list of names and values. least and most: the columns of a terminal that it may have."""

    title: str
    pairs: Pairs
    least: int
    most: int
    head: str = ""
    """Of the values."""

    @property
    def natural(self) -> int:
        """The width in which nothing is cut."""
        widest = max((cell_len(formats.safe(name)) + 1 + len(value) for name, value in self.pairs), default=0)
        return max(len(self.title) + 1 + len(self.head), widest)

    def lines(self, width: int, height: int) -> list[str]:
        """Return exactly this many lines of this width; more pairs than fit end with how many more there are."""
        shown = list(self.pairs)
        left_out = len(shown) - (height - 1)
        if left_out > 0:
            shown = shown[: height - 2] if height > 1 else []
            left_out = len(self.pairs) - len(shown)
        lines = [_line(name, value, width) for name, value in [(self.title, self.head), *shown]]
        if left_out > 0 and height > 1:
            lines.append(formats.right(f"{left_out} more", width))
        return lines[:height] + [" " * width] * (height - len(lines))


def panels(status: Status, per_second: float | None = None) -> list[Panel]:
    """Return the four panels: the scheduler, tasks by state, messages sent and received by kind.

    per_second: how many tasks end, None when nobody has looked for long enough to know.
    """
    return [
        Panel("scheduler", _scheduler(status), 10, 18),
        Panel("tasks", _tasks(status, per_second), 17, 24),
        Panel("sent", _messages(status.sent), 18, 34),
        Panel("received", _messages(status.received), 18, 34),
    ]


def sides(status: Status) -> list[Panel]:
    """Return the counts by function, by client and by worker manager."""
    functions = [
        (row.name or "(no name)", _counts(row.queued, row.running, row.ended, row.failed)) for row in status.functions
    ]
    clients = [
        (row.name or row.id[:8], _counts(row.queued, row.running, row.ended, row.failed)) for row in status.clients
    ]
    managers = [(row.id, f"{_units(row)}{' (!)' if row.trouble else ''}") for row in status.managers]
    return [
        Panel("functions", functions, 38, 44, _COUNTS),
        Panel("clients", clients, 38, 44, _COUNTS),
        Panel("managers", managers, 26, 44, "units"),
    ]


def beside(found: Sequence[Panel], width: int, height: int) -> list[str]:
    """Return panels beside each other, in lines of at most this width; the last ones are left out where none fits."""
    chosen = list(found)
    while len(chosen) > 1 and _sum([panel.least for panel in chosen]) > width:
        chosen.pop()
    widths = [min(panel.least, width) for panel in chosen]
    room = width - _sum(widths)
    for place, panel in enumerate(chosen):
        more = max(0, min(room, min(panel.natural, panel.most) - widths[place]))
        widths[place] += more
        room -= more
    columns = [panel.lines(wide, height) for panel, wide in zip(chosen, widths, strict=True)]
    return [BAR.join(parts).rstrip() for parts in zip(*columns, strict=True)]


def height_of(found: Sequence[Panel], most: int) -> int:
    """Return how many lines panels need beside each other, at most so many."""
    return min(most, 1 + max((len(panel.pairs) for panel in found), default=0))


def totals(status: Status, listed: int, matching: int, wanted: str) -> str:
    """Return one line on how many of what there is, and what of it is shown. listed: rows that the scheduler told."""
    total = status.totals
    workers = max(total.workers, listed)
    parts = [f"Total {formats.count(workers)} worker(s), {formats.count(total.slots)} slot(s)"]
    if total.draining:
        parts.append(f"{formats.count(total.draining)} ending")
    if total.disconnected:
        parts.append(f"{formats.count(total.disconnected)} out of contact")
    if listed < workers:
        parts.append(f"listed are {formats.count(listed)}, in trouble first, then the busiest")
    if wanted:
        parts.append(f"{formats.count(matching)} with {formats.safe(wanted)!r}")
    return "; ".join(parts)


def _line(name: str, value: str, width: int) -> str:
    return formats.left(f"{formats.left(name, width - len(value) - 1)} {value}" if value else name, width)


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(BAR) * (len(widths) - 1)


def _scheduler(status: Status) -> Pairs:
    scheduler, storage = status.scheduler, status.storage
    pairs = [("cpu", formats.percent(scheduler.cpu_percent)), ("rss", formats.size(scheduler.rss_bytes))]
    if scheduler.uptime_seconds:
        pairs.append(("up", formats.duration(scheduler.uptime_seconds)))
    if scheduler.step_seconds_max:
        pairs.append(("step", formats.duration(scheduler.step_seconds_max)))
    if storage.address:
        pairs += [("objs", formats.short_count(storage.objects)), ("mem", formats.size(storage.bytes))]
    return pairs


def _tasks(status: Status, per_second: float | None) -> Pairs:
    tasks = status.tasks
    # The first ones are there however low the terminal is.
    now = [
        ("ready", tasks.ready),
        ("running", tasks.running),
        (DONE, tasks.ended.get(DONE, 0)),
        ("failed", tasks.failed_total),
        (CANCELLED, tasks.ended.get(CANCELLED, 0)),
        ("waiting", tasks.waiting),
        ("assigned", tasks.assigned),
        ("suspended", tasks.suspended),
    ]
    pairs = [(name, formats.count(number)) for name, number in now]
    if per_second is not None:
        pairs.append(("per second", formats.short_count(round(per_second))))
    kinds = {kind: number for kind, number in tasks.ended.items() if number and kind not in (DONE, CANCELLED)}
    return [*pairs, *_messages(kinds)]


def _messages(counts: Mapping[str, int]) -> Pairs:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, formats.count(number)) for name, number in ordered]


def _units(manager: ManagerRow) -> str:
    """Return how many run, of how many are desired; a manager with a fixed number of them is told none."""
    return str(manager.running) if manager.desired is None else f"{manager.running} of {manager.desired}"


def _counts(*numbers: int) -> str:
    return " ".join(formats.right(formats.short_count(number), 6) for number in numbers)
