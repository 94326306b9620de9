"""All of the scheduler's decisions, pure. The door is `core.SchedulerCore.step`.

How data flows: `inputs` come into `core`; `submission` takes tasks in; `tasks` carries them to their end; `ready`
queues them; `placement` and `balance` say who gets which; `elastic` asks the scaling policy; `objects` and `groups`
count uses; `outbox` collects what is to be said and makes `commands` of it; `facts` tell monitors. `state` has the
records, and `invariants` what must always hold.
"""
