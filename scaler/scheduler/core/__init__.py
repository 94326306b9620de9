"""All decisions of the scheduler. Pure: `core.SchedulerCore.step` takes inputs and returns commands.

Data flow: `core` receives inputs (events from `net.connection`, and inputs defined in `commands`). `submission` admits
tasks, `tasks` changes their state, `ready` queues them, and `placement` chooses workers. `elastic` turns the scaling
policy's answers into messages, `data` locates objects and directs transfers, and `outbox` turns messages into commands.
`cluster` contains the whole state, made of the records in `state`, and counts the uses of objects. Monitors only read
the state. `rooms` delivers `changes` to the journal, monitors, and extensions.
"""
