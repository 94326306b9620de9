"""What a bucket of the emulated S3 has beside its objects: documents that are kept as they came."""

from __future__ import annotations

import json

from scaler.testing.aws.faults import Refusal
from scaler.testing.aws.s3 import xml
from scaler.testing.aws.s3.requests import checked_content
from scaler.testing.aws.s3.store import Bucket
from scaler.testing.aws.service import Answer, Call

DEFAULTS = {
    "publicAccessBlock": (
        b"<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls><IgnorePublicAcls>true"
        b"</IgnorePublicAcls><BlockPublicPolicy>true</BlockPublicPolicy><RestrictPublicBuckets>true"
        b"</RestrictPublicBuckets></PublicAccessBlockConfiguration>"
    ),
    "encryption": (
        b"<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256"
        b"</SSEAlgorithm></ApplyServerSideEncryptionByDefault><BucketKeyEnabled>false</BucketKeyEnabled></Rule>"
        b"</ServerSideEncryptionConfiguration>"
    ),
    "ownershipControls": (
        b"<OwnershipControls><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>"
    ),
    "versioning": b"<VersioningConfiguration/>",
}
"""What a new bucket has."""
ROOTS = {
    "lifecycle": "LifecycleConfiguration",
    "tagging": "Tagging",
    "publicAccessBlock": "PublicAccessBlockConfiguration",
    "encryption": "ServerSideEncryptionConfiguration",
    "ownershipControls": "OwnershipControls",
    "versioning": "VersioningConfiguration",
}
MISSING = {
    "lifecycle": ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    "tagging": ("NoSuchTagSet", "The TagSet does not exist"),
    "publicAccessBlock": (
        "NoSuchPublicAccessBlockConfiguration",
        "The public access block configuration was not found",
    ),
    "policy": ("NoSuchBucketPolicy", "The bucket policy does not exist"),
    "ownershipControls": ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
}
HEADERS = {
    "policy": {"content-type": "application/json"},
    "lifecycle": {**xml.HEADERS, "x-amz-transition-default-minimum-object-size": "all_storage_classes_128K"},
}
NO_CONTENT = Answer(204)


def put(bucket: Bucket, document: str, call: Call) -> Answer:
    """Take a document. Raises Refusal."""
    body = checked_content(call)
    if document == "policy":
        try:
            json.loads(body)
        except ValueError as error:
            raise Refusal("MalformedPolicy", "Policies must be valid JSON and the first byte must be '{'") from error
    else:
        found = xml.parsed(body, ROOTS[document])
        if document == "lifecycle":
            bucket.expiries = xml.expiries_in(found)
        elif document == "tagging":
            xml.tags_in(found)
        elif document == "encryption":
            body = xml.with_bucket_keys(found)
    bucket.documents[document] = body
    return NO_CONTENT if document in ("policy", "tagging") else Answer(200)


def delete(bucket: Bucket, document: str) -> Answer:
    """Drop a document, or put the default in its place."""
    bucket.documents.pop(document, None)
    if document == "lifecycle":
        bucket.expiries = []
    if document == "encryption":
        bucket.documents[document] = DEFAULTS[document]
    return NO_CONTENT


def get(bucket: Bucket, document: str) -> Answer:
    """Answer with a document. Raises Refusal."""
    body = bucket.documents.get(document)
    if body is None:
        raise Refusal(*MISSING[document], 404)
    return Answer(200, body, HEADERS.get(document, xml.HEADERS))
