"""XML as S3 reads and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from xml.etree import ElementTree

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.s3.store import Expiry
from scaler.testing.aws.service import Answer

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MAX_TAGS = 50
HEADERS = {"content-type": "application/xml"}

Element = ElementTree.Element


def element(name: str, *children: Element, text: str | None = None) -> Element:
    """Make an element."""
    made = Element(name)
    made.text = text
    made.extend(children)
    return made


def texts(pairs: Mapping[str, str | int | bool]) -> list[Element]:
    """Make an element with text for each pair."""
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in pairs.items()}
    return [element(name, text=text) for name, text in words.items()]


def document(root: Element, status: int = 200) -> Answer:
    """Answer with an XML document."""
    if root.tag != "Error":
        root.set("xmlns", NAMESPACE)
    return Answer(status, ElementTree.tostring(root, "utf-8", xml_declaration=True), HEADERS)


def parsed(body: bytes, root: str) -> Element:
    """Read a document, without namespaces. Raises Refusal when its root is another one."""
    try:
        found = ElementTree.fromstring(body)  # noqa: S314 (from loopback, from a test)
    except ElementTree.ParseError as error:
        raise malformed() from error
    for each in found.iter():
        each.tag = each.tag.rpartition("}")[2]
    if found.tag != root:
        raise malformed()
    return found


def malformed() -> Refusal:
    """Return the error for a document that is not what it should be."""
    text = "The XML you provided was not well-formed or did not validate against our published schema"
    return Refusal("MalformedXML", text)


def tags_in(found: Element) -> dict[str, str]:
    """Read a TagSet. Raises Refusal."""
    tags = {tag.findtext("Key", ""): tag.findtext("Value", "") for tag in found.iter("Tag")}
    return checked_tags(tags)


def checked_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return tags that may be. Raises Refusal."""
    if len(tags) > MAX_TAGS or any(not 0 < len(key) <= 128 or len(value) > 256 for key, value in tags.items()):
        raise Refusal("InvalidTag", "The tags are too many, or one is empty or too long")
    return tags


def tagging(tags: Mapping[str, str]) -> Element:
    """Write tags."""
    return element(
        "Tagging",
        element("TagSet", *(element("Tag", *texts({"Key": key, "Value": value})) for key, value in tags.items())),
    )


def expiries_in(found: Element) -> list[Expiry]:
    """Read the rules of a lifecycle configuration that delete objects. Raises Refusal."""
    rules = found.findall("Rule")
    if not rules:
        raise malformed()
    expiries = []
    for rule in rules:
        status = rule.findtext("Status")
        days = rule.findtext("Expiration/Days")
        if status not in ("Enabled", "Disabled") or (rule.find("Filter") is None and rule.find("Prefix") is None):
            raise malformed()
        if days is not None and (not days.isdecimal() or int(days) < 1):
            raise Refusal("InvalidArgument", "'Days' for Expiration action must be a positive integer")
        if status == "Enabled" and days is not None:
            prefix = next((each.text or "" for each in rule.iter("Prefix")), "")
            expiries.append(Expiry(prefix, tags_in(rule), int(days)))
    return expiries


def with_bucket_keys(found: Element) -> bytes:
    """Return an encryption configuration, with what the service adds to its rules."""
    for rule in found.iter("Rule"):
        if rule.find("BucketKeyEnabled") is None:
            rule.extend(texts({"BucketKeyEnabled": False}))
    found.set("xmlns", NAMESPACE)
    return bytes(ElementTree.tostring(found, "utf-8", xml_declaration=True))


def iso(seconds: float) -> str:
    """Return a time as documents have it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def http_date(seconds: float) -> str:
    """Return a time as headers have it."""
    return formatdate(seconds, usegmt=True)
