"""The agent's process: sockets, signals and timers around `worker.core`. Light: third-party code imports below it."""
