"""Service Quotas of the emulator. Tests set the values."""

from __future__ import annotations

import json

from scaler.testing.aws.faults import Partial, ServiceError
from scaler.testing.aws.service import Answer, ServiceCall

TARGET = "ServiceQuotasV20190624."
_JSON = {"Content-Type": "application/x-amz-json-1.1"}
_CLOSED_AT_FIRST = (
    "L-DB2E81BA",
    "L-3819A6DF",
    "L-417A185B",
    "L-7212CCBC",
    "L-7295265B",
    "L-E3A00192",
    "L-2C3B7624",
    "L-6B0D517C",
)
"""Instances of the groups G, P, X, and Trn, on demand and spot."""


class EmulatedQuotas:
    """GetServiceQuota. values: by quota code, initially those of a new account."""

    name = "servicequotas"

    def __init__(self) -> None:
        self.values = {"L-3032A538": 6.0, "L-36FBB829": 6.0, "L-1216C47A": 5.0, "L-34B43A08": 5.0}
        self.values |= dict.fromkeys(_CLOSED_AT_FIRST, 0.0)

    def name_of(self, call: ServiceCall) -> str | None:
        target = call.headers.get("x-amz-target", "")
        return target.removeprefix(TARGET) if target.startswith(TARGET) else None

    def answer(self, operation: str, call: ServiceCall, partial: Partial | None) -> Answer:  # noqa: ARG002 (as every service)
        request = json.loads(call.body or b"{}")
        code = request.get("QuotaCode", "")
        if operation != "GetServiceQuota" or code not in self.values:
            raise ServiceError("NoSuchResourceException", f"there is no {operation} of the quota {code!r} here")
        quota = {"ServiceCode": request["ServiceCode"], "QuotaCode": code, "Value": self.values[code]}
        return Answer(200, json.dumps({"Quota": quota}).encode(), _JSON)

    def refuse(self, refusal: ServiceError) -> Answer:
        body = json.dumps({"__type": refusal.code, "message": refusal.message}).encode()
        return Answer(refusal.status, body, _JSON)

    def throttle(self) -> ServiceError:
        return ServiceError("TooManyRequestsException", "Rate exceeded", 429)

    def close(self) -> None:
        pass
