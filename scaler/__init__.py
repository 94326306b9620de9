"""Scaler: elastic compute for Python."""

from scaler._version import __version__

__all__ = ["__version__"]
