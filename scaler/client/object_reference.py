"""The import path of `ObjectReference` that libraries built on the client use."""

from __future__ import annotations

from scaler.client.tasks import ObjectReference

__all__ = ["ObjectReference"]
