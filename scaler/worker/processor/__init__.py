"""The processor's process, which runs user code. `scaler.offload.job` shares its modules."""
