"""All of the scheduler's decisions, pure: `core.SchedulerCore.step` takes inputs and returns commands.

How data flows: inputs (events of `net.connection`, and some in `commands`) come into `core`; `submission` takes tasks
in; `tasks` has every transition until their end; `ready` queues them; `placement` decides which worker gets which task;
`elastic` turns the scaling policy's answers into messages; `objects` counts uses; `outbox` collects messages and makes
`commands` of them; `data` knows where objects are, and has stores fetch them. `cluster` has the whole state,
made of the records in `state`; `explain`, `invariants` and the monitors only read it. `changes` happened, and `rooms`
hands them to the journal, monitors, and extensions.
"""
