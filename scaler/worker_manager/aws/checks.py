"""`setup --check`: reports problems before anything is created or charged. Changes nothing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources

from scaler.config.worker_managers import WorkerManagerConfig
from scaler.grammar import counted
from scaler.worker_manager.aws.calls import AwsError, Fields
from scaler.worker_manager.aws.prices import PRICES_OF
from scaler.worker_manager.aws.setup import Account, Resource, is_ours
from scaler.worker_manager.backend import loopback_warning

_QUOTAS = tomllib.loads(resources.files(__package__).joinpath("quotas.toml").read_text())
_ECR = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(.+))?")


class Checks:
    def __init__(self, account: Account) -> None:
        self.account = account
        self.problems = 0

    def ok(self, text: str) -> None:
        self.account.line("ok", text)

    def problem(self, text: str) -> None:
        self.problems += 1
        self.account.line("problem", text)

    @contextmanager
    def asking(self, what: str, setting: str = "") -> Iterator[None]:
        """Report a failed question. setting: the one to correct if AWS refuses the question."""
        try:
            yield
        except AwsError as error:
            if setting and error.kind == "refused":
                self.problem(f"{what}: {error.message}: correct {setting}")
            else:
                self.account.line("unknown", what, str(error))

    def quota(self, capacity: str, vcpus: int | None, setting: str) -> None:
        code, name = _QUOTAS["fargate"][capacity]
        self._compare("fargate", code, name, vcpus, setting)

    def instances(self, purchase: str, types: Sequence[str], vcpus: int | None, setting: str) -> None:
        """Compare with the quotas of all groups of these types or families. purchase: EC2 or SPOT."""
        others = list(types)
        form = "All {} Spot Instance Requests" if purchase == "SPOT" else "Running On-Demand {} instances"
        for name, group in _QUOTAS["ec2"].items():
            code = group.get("spot" if purchase == "SPOT" else "on_demand")
            if code and (members := [each for each in types if re.fullmatch(group["types"], each)]):
                others = [each for each in others if each not in members]
                self._compare("ec2", code, form.format(name), vcpus, setting)
        if others:
            self.account.line("unknown", f"quota of {', '.join(others)}", "look it up in Service Quotas")

    def _compare(self, service: str, code: str, name: str, vcpus: int | None, setting: str) -> None:
        with self.asking(f"quota {name}"):
            answer = self.account.client("service-quotas").call("GetServiceQuota", ServiceCode=service, QuotaCode=code)
            allowed = int(answer["Quota"]["Value"])
            wanted = "without a limit" if vcpus is None else f"up to {vcpus} vCPUs"
            text = f"{setting} is {wanted}, and the quota {name} ({code}) of {self.account.region} is {allowed} vCPUs"
            if vcpus is not None and vcpus <= allowed:
                self.ok(text)
            else:
                self.problem(f"{text}: ask for more in Service Quotas, or lower {setting}")

    def network(
        self,
        subnets: Sequence[Fields],
        *,
        public_ip: bool | None,
        units: int | None,
        public_key: str,
        closed_key: str = "VPC endpoints (ecr.api, ecr.dkr, s3, logs) and an image in ECR",
        noun: str = "unit",
        more: str = "add subnets",
    ) -> None:
        """Check routes and addresses of subnets. public_ip: None for the subnet's setting. units: None for no limit."""
        with self.asking("routes of the subnets"):
            self._ways_out(subnets, public_ip=public_ip, public_key=public_key, closed_key=closed_key)
        free = sum(int(subnet["AvailableIpAddressCount"]) for subnet in subnets)
        if units is not None and units > free:
            self.problem(f"the subnets have {free} free addresses, but up to {units} {noun}s need one each: {more}")

    def _ways_out(self, subnets: Sequence[Fields], *, public_ip: bool | None, public_key: str, closed_key: str) -> None:
        closed, unreached, ways = list[str](), list[str](), list[str]()
        for subnet in subnets:
            routes = [
                route
                for table in self._tables(subnet)
                for route in table["Routes"]
                if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") != "blackhole"
            ]
            is_public = any(str(route.get("GatewayId", "")).startswith("igw-") for route in routes)
            gets_public = bool(subnet.get("MapPublicIpOnLaunch")) if public_ip is None else public_ip
            kind = closed if not routes else unreached if is_public and not gets_public else ways
            kind.append(str(subnet["SubnetId"]))
        if closed:
            self.problem(
                f"{_subnets(closed, 'has', 'have')} no route to the internet: units there cannot reach a registry, "
                f"package index, S3, or log group. Give the subnet a NAT gateway, or {closed_key}"
            )
        if unreached:
            self.problem(
                f"{_subnets(unreached, 'is', 'are')} public, and units there cannot reach the internet "
                f"without a public address: {public_key}"
            )
        if ways:
            self.ok(f"{_subnets(ways, 'has', 'have')} a route to the internet")

    def _tables(self, subnet: Fields) -> list[Fields]:
        ec2 = self.account.client("ec2")
        own = [{"Name": "association.subnet-id", "Values": [subnet["SubnetId"]]}]
        main = [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}, {"Name": "association.main", "Values": ["true"]}]
        return list(ec2.items("DescribeRouteTables", "RouteTables", Filters=own)) or list(
            ec2.items("DescribeRouteTables", "RouteTables", Filters=main)
        )

    def image(self, image: str | None) -> None:
        if image is None:
            return
        found = _ECR.fullmatch(image)
        if found is None:
            self.account.line("unknown", f"image {image}", "only images in ECR are checked")
            return
        repository, tag, digest = found.groups()
        which = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
        with self.asking(f"image {image}", "the setting, or push it"):
            self.account.client("ecr").call("DescribeImages", repositoryName=repository, imageIds=[which])
            self.ok(f"image {image}")

    def resources(self, resources: Sequence[Resource]) -> None:
        for resource in resources:
            with self.asking(resource.what):
                found = resource.describe()
                if resource.is_quiet:
                    continue
                changes = resource.changes(found) if found is not None and is_ours(found) else ()
                if found is None:
                    self.account.line("missing", resource.what, "setup creates it")
                elif changes:
                    self.account.line("differs", changes[0][0], "setup changes it")
                else:
                    self.ok(resource.what)

    def finish(self, config: WorkerManagerConfig, *, has_workers: bool = True) -> int:
        """Check that workers can reach the scheduler, if its address is known. Return 1 after a problem."""
        if has_workers and config.scheduler_address != config.setup_defaults["scheduler_address"]:
            warning = loopback_warning("workers on AWS", config.worker_scheduler_address)
            if warning and not self.account.has_endpoint:
                self.problem(warning)
        return 1 if self.problems else 0


def _subnets(names: Sequence[str], one: str, several: str) -> str:
    return f"subnet {names[0]} {one}" if len(names) == 1 else f"subnets {', '.join(names)} {several}"


def show_costs(account: Account, what: str, prices: Sequence[float | None], size: str) -> None:
    """Print what units cost. prices: price of each unit per hour, None if unknown."""
    money = f"about {sum(filter(None, prices)):.2f} USD an hour (prices of {PRICES_OF})"
    money = "at an unknown price" if None in prices else money
    account.line("runs", f"{counted(len(prices), what)}: {size}, {money}" if prices else f"no {what}s")
