"""The object storage: large bytes by id, put and got by clients and processors, never seen by the scheduler."""
