"""Client queries about tasks and the cluster, and commands to workers."""

from scaler.plugins import Extension

EXTENSION = Extension("queries", questions="scaler.extensions.queries.client:Queries")
