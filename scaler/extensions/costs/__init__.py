"""Costs of units, and the spend limit.

step of the policy -> core.py: ledger, and its limits for units -> file.py: state_directory
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "costs",
    settings="scaler.extensions.costs.settings:CostSettings",
    scheduler="scaler.extensions.costs.core:Costs",
    performer="scaler.extensions.costs.file:spending_file",
    page="scaler.extensions.costs:costs",
)
