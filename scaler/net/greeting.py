"""Parses the Hello that begins a connection, and decides on admission. Pure."""

from __future__ import annotations

from scaler.errors import ProtocolError
from scaler.grammar import counted
from scaler.net.connection import Identity
from scaler.net.transport import EnvelopeReceived
from scaler.net.versions import other_protocol
from scaler.protocol import messages as m
from scaler.protocol.codec import decode
from scaler.protocol.session import Header


def hello_of(envelope: EnvelopeReceived, header: Header) -> m.Hello:
    if len(envelope.body) > m.MAX_HELLO_BYTES or envelope.attachments:
        attachments = counted(len(envelope.attachments), "attachment")
        raise ProtocolError(f"no Hello has size {len(envelope.body)} and {attachments}")
    hello = decode(envelope.body)
    if not isinstance(hello, m.Hello) or header.flags or header.sequence:
        raise ProtocolError(f"a connection starts with Hello, not {type(hello).__name__}")
    return hello


def version_refusal(version: int, body: bytes) -> m.Refused:
    """Return the refusal of a peer with another protocol version. body: body of its Hello, if readable."""
    try:
        hello = decode(body) if len(body) <= m.MAX_HELLO_BYTES else None
    except ProtocolError:
        hello = None
    return other_protocol(version, hello if isinstance(hello, m.Hello) else None)


def refusal_of(hello: m.Hello, identity: Identity, server: m.Server) -> m.Refused | None:
    if not identity.roles:
        return m.Refused(m.RefusalReason.CREDENTIAL, "this peer's key is no longer accepted")
    if hello.role not in identity.roles:
        is_worker = m.Role.WORKER in identity.roles  # a worker's key is also its store's key
        roles = identity.roles - ({m.Role.STORE} if is_worker else set())
        text = f"the key {identity.key} is for the role {' or '.join(sorted(roles))}, not {hello.role}"
        return m.Refused(m.RefusalReason.CREDENTIAL, text)
    if not m.MAY_SEND[server][hello.role]:
        text = f"{hello.role}s do not connect to the {server.replace('_', ' ')}, which listens at this address"
        return m.Refused(m.RefusalReason.ROLE, text)
    problem = m.wrong_details(server, hello)
    return m.Refused(m.RefusalReason.ROLE, problem) if problem else None


def is_durable(hello: m.Hello) -> bool:
    """Return whether a client requests a durable session, which any peer with its key may continue."""
    return isinstance(hello.details, m.ClientDetails) and bool(hello.details.session)
