"""An import path that third-party libraries use; see `processor.py`."""
