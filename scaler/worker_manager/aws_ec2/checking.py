"""What `setup --check` of aws_ec2 looks at (image, types, zones and network), and what `show` prints of instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scaler.grammar import counted
from scaler.worker_manager.aws.calls import Fields
from scaler.worker_manager.aws.checks import Checks
from scaler.worker_manager.aws.prices import PRICES_OF, ec2_price
from scaler.worker_manager.aws.resources import default_subnets
from scaler.worker_manager.aws.setup import Account
from scaler.worker_manager.aws_ec2 import AwsEc2Config

NO_IMAGE = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
NO_TYPE = "InvalidInstanceType"


def check_instances(checks: Checks, config: AwsEc2Config, instances: int | None) -> None:
    """Check that image, types and subnets fit together. instances: the most that run; None for no limit."""
    ec2 = checks.account.client("ec2")
    types: list[Fields] = []
    with checks.asking(f"instance types {', '.join(config.ec2_instance_types)}"):
        types = _types(checks, config.ec2_instance_types)
    image: Fields | None = None
    with checks.asking(f"image {config.ec2_image}"):
        image = _image(checks, config.ec2_image)
    if image is not None:
        _report(checks, image_problems(image, types), f"image {config.ec2_image}")
    with checks.asking("subnets"):
        filters = [{"Name": "subnet-id", "Values": list(config.ec2_subnets)}]
        own = list(config.ec2_subnets)
        found = (
            list(ec2.items("DescribeSubnets", "Subnets", Filters=filters)) if own else default_subnets(checks.account)
        )
        if not found and not own:
            checks.problem("there is no default VPC with subnets in this region: give ec2_subnets")
            return
        missing = sorted(set(own) - {str(subnet["SubnetId"]) for subnet in found})
        if missing:
            checks.problem(f"there is no subnet {', '.join(missing)} in {checks.account.region}: correct ec2_subnets")
        if found:
            checks.network(
                [str(subnet["SubnetId"]) for subnet in found],
                public_ip=None,
                units=instances,
                noun="instance",
                more="add subnets to ec2_subnets, or lower max_task_concurrency",
                closed_key="VPC endpoints (s3, ssm) and an image with ec2_python",
                public_key="let the subnet give public addresses (auto-assign public IPv4), or choose one with a NAT",
            )
            _zones(checks, config.ec2_instance_types, found, chosen=bool(own))


def _zones(checks: Checks, types: Sequence[str], found: Sequence[Fields], *, chosen: bool) -> None:
    ec2 = checks.account.client("ec2")
    filters = [{"Name": "instance-type", "Values": list(types)}]
    with checks.asking("zones of the instance types"):
        offers = ec2.items(
            "DescribeInstanceTypeOfferings", "InstanceTypeOfferings", LocationType="availability-zone", Filters=filters
        )
        pairs = {(str(offer["InstanceType"]), str(offer["Location"])) for offer in offers}
        zones = {str(subnet["AvailabilityZone"]) for subnet in found}
        _report(checks, zone_problems(types, zones, pairs, chosen=chosen), "zones of the instance types")


def zone_problems(
    types: Iterable[str], zones: Iterable[str], offered: Iterable[tuple[str, str]], *, chosen: bool
) -> list[str]:
    """Return the types that zones lack. Zones of a default VPC may lack some; chosen subnets may not."""
    pairs, wanted, texts = set(offered), sorted(zones), []
    for name in types:
        without = [zone for zone in wanted if (name, zone) not in pairs]
        if without and len(without) == len(wanted):
            texts.append(
                f"{name} is not offered in {', '.join(without)}, where the subnets are: "
                "take it out of ec2_instance_types, or add subnets of other zones to ec2_subnets"
            )
        elif without and chosen:
            texts.append(
                f"{name} is not offered in {', '.join(without)}: instances start in the other zones only; "
                "leave out that subnet, or add types that the zone has"
            )
    return texts


def image_problems(image: Fields, types: Sequence[Fields]) -> list[str]:
    """Return why instances of these types cannot start from an image, both as EC2 describes them."""
    name, state = str(image["ImageId"]), str(image.get("State", "available"))
    texts = []
    if state != "available":
        texts.append(
            f"image {name} cannot be launched, it is {state}: wait until it is available, or give another ec2_image"
        )
    if str(image.get("Platform", "")).lower() == "windows":
        texts.append(f"image {name} is of Windows, and workers need Linux: give another ec2_image")
    architecture = str(image.get("Architecture", ""))
    for each in types:
        able = [str(one) for one in each.get("ProcessorInfo", {}).get("SupportedArchitectures", ())]
        if architecture and able and architecture not in able:
            texts.append(
                f"image {name} is for {architecture}, and {each['InstanceType']} is {' or '.join(able)}: give an image "
                "for it, or other ec2_instance_types"
            )
    return texts


def _report(checks: Checks, texts: Sequence[str], what: str) -> None:
    for text in texts:
        checks.problem(text)
    if not texts:
        checks.ok(what)


def _image(checks: Checks, image_id: str) -> Fields | None:
    answer = checks.account.client("ec2").find("DescribeImages", *NO_IMAGE, ImageIds=[image_id])
    found = answer["Images"] if answer else []
    if not found:
        checks.problem(
            f"there is no image {image_id} in {checks.account.region}, or it is not shared with this account: "
            "ids differ by region; correct ec2_image"
        )
    return found[0] if found else None


def _types(checks: Checks, names: Sequence[str]) -> list[Fields]:
    """Return the types as EC2 describes them; report unknown ones as problems."""
    ec2, found = checks.account.client("ec2"), []
    for name in names:  # one by one: EC2 refuses all of a request with one that it does not know
        if answer := ec2.find("DescribeInstanceTypes", NO_TYPE, InstanceTypes=[name]):
            found += answer["InstanceTypes"]
        else:
            checks.problem(f"{checks.account.region} has no instance type {name}: correct ec2_instance_types")
    return found


def show_instances(account: Account, instances: Iterable[Fields]) -> None:
    for text in running_costs(account.region, instances):
        account.line("runs", text)


def running_costs(region: str, instances: Iterable[Mapping[str, object]]) -> list[str]:
    counts = Counter(
        (str(each["InstanceType"]), str(each.get("InstanceLifecycle") or "on demand")) for each in instances
    )
    lines, total, unknown = [], 0.0, 0
    for (name, market), count in sorted(counts.items()):
        price = ec2_price(region, name, spot=market == "spot")
        each = "at an unknown price" if price is None else f"about {price:.4f} USD an hour each"
        lines.append(f"{count} of {name}, {market}: {each}")
        total += count * (price or 0.0)
        unknown += count if price is None else 0
    if not counts:
        return ["no instances"]
    known = f"about {total:.2f} USD an hour (prices of {PRICES_OF})"
    without = f", and {unknown} at an unknown price" if unknown else ""
    return [*lines, f"{counted(counts.total(), 'instance')} together: {known}{without}"]
