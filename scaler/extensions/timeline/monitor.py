"""Tracks which task ran on which worker lane, and when. Pure, bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from scaler.extensions.timeline.lanes import Bar, Block, Lane, LaneKey, Omitted
from scaler.monitor.model import Model, MonitorPart
from scaler.monitor.rows import decode_list
from scaler.protocol.monitor_rows import BlockRow, Status, TaskRow


class TaskLanes(MonitorPart):
    """Lanes of the tasks in the model, with blocks for forgotten tasks."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._omitted = Omitted()

    def on_status(self, before: Status) -> None:
        if before.at and before.incarnation != self.model.status.incarnation:
            self._omitted = Omitted()

    def on_events(self, document: Mapping[str, Any], _rows: Sequence[TaskRow]) -> None:
        for block in decode_list(BlockRow, document.get("blocks")):
            self._omitted.add((block.worker, block.lane), Block(*block[2:6]))

    def on_forgotten(self, row: TaskRow) -> None:
        if row.lane:
            end_us = row.began_us + row.duration_us
            block = Block(row.began_us, end_us, 1, row.duration_us, row.function, row.failed_share)
            self._omitted.add((row.worker, row.lane), block)

    def oldest_end(self) -> float | None:
        """Return the end (unix seconds) of the earliest ended task outside blocks, or None."""
        return min((task.ended_at for task in self.model.reported() if task.ended_at is not None), default=None)

    def lanes(self, since: float = -inf, until: float = inf, resolution: float = 0.0) -> dict[LaneKey, Lane]:
        """Return what ran between two times (unix seconds). Merges tasks shorter than resolution into blocks."""
        now = self.model.now
        lanes = {
            (worker.name, lane): Lane() for worker in self.model.status.workers for lane in range(1, worker.slots + 1)
        }
        for task in self.model.reported():
            if not task.lane:
                continue
            start = min(task.started_at, now)
            end = now if task.ended_at is None else min(task.ended_at, now)
            if end >= since and start <= until:
                lane = lanes.setdefault((task.worker, task.lane), Lane())
                if end - start < resolution:
                    lane.blocks.append(Block(start, end, 1, end - start, task.function, task.failed_share))
                else:
                    inputs = min(task.inputs_us / 1e6, end - start), task.inputs_bytes
                    lane.bars.append(Bar(start, end, task.id, task.function, task.state, *inputs, task.failed_share))
        for key, blocks in self._omitted.blocks(self.model.clocks):
            found = [block for block in blocks if block.end >= since and block.start <= until]
            if found:
                lanes.setdefault(key, Lane()).blocks.extend(found)
        for lane in lanes.values():
            lane.settle(resolution)
        return lanes
