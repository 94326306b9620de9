"""The processor's process: it runs user code. The far end of offloaded tasks (`scaler.worker.job`) shares its parts."""
