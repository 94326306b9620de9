"""Monitoring: a model built from the scheduler's reports, and the views that read the model."""
