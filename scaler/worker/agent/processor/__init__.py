"""A door for third-party libraries; see `processor.py` beside this file."""
