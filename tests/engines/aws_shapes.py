"""Clients of the emulator, and comparisons of its answers with moto's answers and the services' models."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.model import ListShape, MapShape, Shape, StructureShape

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "double": (int, float),
    "float": (int, float),
}


def client_of(service: str, attempts: int = 1, **more: Any) -> Any:
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=60)
    return boto3.client(
        service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b", config=config, **more
    )


def missing_keys(theirs: Any, ours: Any, path: str) -> list[str]:
    """Return where a moto answer has a key that ours lacks, or a value of another type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in theirs if key != "ResponseMetadata"]
        absent = [f"{path}.{key}" for key in keys if key not in ours]
        below = [missing_keys(theirs[key], ours[key], f"{path}.{key}") for key in keys if key in ours]
        return absent + [line for lines in below for line in lines]
    if isinstance(theirs, list) and isinstance(ours, list):
        if theirs and not ours:
            return [f"{path}[0]"]
        return missing_keys(theirs[0], ours[0], f"{path}[0]") if theirs else []
    return [] if type(theirs) is type(ours) else [f"{path}: {type(theirs).__name__}, not {type(ours).__name__}"]


def unknown_keys(answer: Any, shape: Shape | None, path: str) -> list[str]:
    """Return the paths in a JSON answer with unknown keys, types, or enumeration values."""
    if isinstance(shape, StructureShape) and isinstance(answer, dict):
        names = {member.serialization.get("name", name): member for name, member in shape.members.items()}
        unknown = [f"{path}.{key}" for key in answer if key not in names]
        below = [unknown_keys(answer[key], names[key], f"{path}.{key}") for key in answer if key in names]
        return unknown + [line for lines in below for line in lines]
    if isinstance(shape, ListShape) and isinstance(answer, list):
        return [line for each in answer for line in unknown_keys(each, shape.member, f"{path}[]")]
    if isinstance(shape, MapShape) and isinstance(answer, dict):
        return [line for each in answer.values() for line in unknown_keys(each, shape.value, f"{path}{{}}")]
    if shape is None:
        return [] if answer == {} else [path]
    allowed = getattr(shape, "enum", None)
    if not isinstance(answer, TYPES.get(shape.type_name, ())) or (allowed and answer not in allowed):
        return [f"{path}: {answer!r}"]
    return []
