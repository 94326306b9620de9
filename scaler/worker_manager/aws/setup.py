"""Runs `setup` and `teardown` over a list of resources. Each step checks the current state first and changes only
resources with the tag `scaler:managed`. `show` is a dry run of `setup`."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import boto3

from scaler.backoff import Backoff
from scaler.config.commands import Verb
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError, Fields, aws_session, with_region

MANAGED_TAG = "scaler:managed"
MANAGED = {MANAGED_TAG: "true"}
MANAGED_PAIRS = [{"Key": MANAGED_TAG, "Value": "true"}]
NOT_OURS = "not created by scaler, unchanged"
PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 8.0
ROLE_SECONDS = 30.0  # time for a new role to propagate
_COLUMN = 13

Change = tuple[str, Callable[[], object]]  # description of the change, and its action


class Account:
    """The AWS account to set up. Prints one line per action. dry_run: print actions without performing them."""

    def __init__(self, settings: AwsSettings, verb: Verb, say: Callable[[str], None], *, dry_run: bool) -> None:
        settings = with_region(settings)
        self.region = settings.aws_region
        self.verb = verb
        self.dry_run = dry_run or verb == "show"
        self._settings = settings
        self._say = say
        self._clients: dict[str, AwsClient] = {}

    def client(self, service: str) -> AwsClient:
        if service not in self._clients:
            self._clients[service] = AwsClient(self._settings, service, session=self._session)
        return self._clients[service]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @cached_property
    def _session(self) -> boto3.session.Session:
        return aws_session(self._settings)

    @cached_property
    def number(self) -> str:
        return str(self.client("sts").call("GetCallerIdentity")["Account"])

    @property
    def partition(self) -> str:
        return str(self.client("sts").raw.meta.partition)

    def arn(self, service: str, name: str, region: str = "") -> str:
        return f"arn:{self.partition}:{service}:{region}:{self.number}:{name}"

    def line(self, word: str, what: str, note: str = "") -> None:
        self._say(f"{word:{_COLUMN}} {what}{f' ({note})' if note else ''}")

    def do(self, verb: str, done: str, what: str, action: Callable[[], object]) -> None:
        if not self.dry_run:
            action()
        self.line(f"would {verb}" if self.dry_run else done, what)

    def pause(self, tries: int = 1) -> None:
        time.sleep(Backoff(PAUSE_SECONDS, MAX_PAUSE_SECONDS, jitter=0.0).seconds(tries))

    def when_roles_are_known(self, action: Callable[[], object]) -> None:
        """Run an action, and retry it while AWS refuses it because a role is new. Raises AwsError."""
        deadline = time.monotonic() + ROLE_SECONDS
        for tries in itertools.count(1):
            try:
                action()
            except AwsError as error:
                if not re.search("profile|role", error.message.lower()) or time.monotonic() > deadline:
                    raise
                if tries == 1:
                    self.line("waiting", f"for a new role to take effect: {error}")
                self.pause(tries)
            else:
                return


def is_ours(found: Fields) -> bool:
    tags = found.get("tags") or found.get("Tags") or found.get("TagSet") or ()
    names = tags if isinstance(tags, Mapping) else [tag.get("Key", tag.get("key")) for tag in tags]
    return MANAGED_TAG in names


class Resource:
    service: ClassVar[str]
    kind: ClassVar[str]
    changes_foreign: ClassVar[bool] = False

    def __init__(self, account: Account, name: str, note: str = "") -> None:
        self.account = account
        self.name = name
        self.what = f"{self.kind} {name}"
        self.wanted = f"{self.what}{note}"

    def describe(self) -> Fields | None:
        raise NotImplementedError

    def create(self) -> None:
        raise NotImplementedError

    def delete(self, found: Fields) -> object:
        raise NotImplementedError

    def describe_all(self) -> Sequence[Fields]:
        found = self.describe()
        return [] if found is None else [found]

    def changes(self, _: Fields) -> Sequence[Change]:
        return ()

    def suffix(self, _: Fields) -> str:
        return ""

    def detail(self, found: Fields) -> str:
        return self.suffix(found)

    def in_use(self, _: Fields) -> str:
        return ""

    def call(self, operation: str, **parameters: Any) -> Fields:
        return self.account.client(self.service).call(operation, **parameters)

    def items(self, operation: str, member: str, **parameters: Any) -> Iterator[Any]:
        return self.account.client(self.service).items(operation, member, **parameters)

    def find(self, operation: str, *absent: str, **parameters: Any) -> Fields | None:
        return self.account.client(self.service).find(operation, *absent, **parameters)

    def ensure(self) -> None:
        account, found = self.account, self.describe()
        if found is None:
            account.do("create", "created", self.wanted, self.create)
            return
        note = "" if is_ours(found) else "made by others" if self.changes_foreign else NOT_OURS
        account.line("exists", f"{self.wanted}{self.detail(found)}", note)
        if note != NOT_OURS:
            for text, action in self.changes(found):
                account.do("change", "changed", text, action)

    def teardown(self) -> bool:
        """Remove the resource if Scaler created it. Returns False if it is still in use and therefore kept."""
        for found in self.describe_all():
            name = f"{self.what}{self.suffix(found)}"
            if not is_ours(found):
                self.account.line("kept", name, NOT_OURS)
            elif reason := self.in_use(found):
                self.account.line("kept", self.what, reason)
                return False
            else:
                self.account.do("remove", "removed", name, partial(self.delete, found))
        return True


def run(account: Account, wanted: Sequence[Resource], to_remove: Sequence[Resource]) -> int:
    """Set up or tear down, in order. Returns 1 if a resource in use was kept. Raises AwsError and UsageError."""
    if account.verb == "teardown":
        results = [resource.teardown() for resource in to_remove]
        return 0 if all(results) else 1
    for resource in wanted:
        resource.ensure()
    return 0
