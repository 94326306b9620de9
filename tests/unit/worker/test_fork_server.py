"""Reports to an agent from the process that creates its processors."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from scaler.worker.fork_server import _REPORT, ForkServer


def test_processor_survives_a_lack_of_descriptors_in_the_agent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = ForkServer(os.getpid(), ours)
        assert server.reports() == []
        theirs.send(_REPORT.pack(1, True, os.getpid(), 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                server.reports()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
