"""Facts about a unit that its worker reads from the environment: the unit's id at its service, and GPUs."""

from scaler.plugins import Extension

EXTENSION = Extension("units", own={"unit": "scaler.extensions.units.unit_id:with_unit"})
