"""The processor's process, which runs user code. `scaler.worker.job` shares its modules."""
