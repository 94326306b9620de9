"""The values of the setting `compression`, of components and clients."""

from __future__ import annotations

from typing import Literal

Compression = Literal["auto", "on", "off"]
COMPRESSION_VARIABLE = "SCALER_COMPRESSION"
