"""Public import path of `ObjectReference`, used by libraries built on the client."""

from __future__ import annotations

from scaler.client.tasks import ObjectReference

__all__ = ["ObjectReference"]
