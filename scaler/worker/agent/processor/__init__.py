"""Import path for third-party libraries; see `processor.py`."""
