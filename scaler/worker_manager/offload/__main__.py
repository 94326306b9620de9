"""`python -m scaler.worker_manager.offload`: runs one agent whose tasks run elsewhere, from SCALER_WORKER_CONFIG."""

from __future__ import annotations

import os
import sys

from scaler.component import report
from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WORKER_CONFIG_VARIABLE
from scaler.errors import ScalerError
from scaler.ids import new_peer_id
from scaler.object_storage.client import StorageClient
from scaler.processes import end_others_born_with
from scaler.protocol.messages import Role
from scaler.worker.agent.shell import Agent, MakeConnector, StatusFile, run_agent
from scaler.worker.credential import own_access, take_credential
from scaler.worker.processor.storage import GET_TIMEOUT_SECONDS
from scaler.worker_manager.offload import OffloadConfig, load_executor
from scaler.worker_manager.offload.service import ServiceAgent


def main() -> int:
    take_credential()
    status = StatusFile(os.environ.pop(LAST_WORDS_FD_VARIABLE, None))
    try:
        config = OffloadConfig.from_environment()
    except ScalerError as error:
        status.write_error(error)
        return report("worker", error)

    def connect_storage(address: str) -> StorageClient:
        access = own_access(config)
        return StorageClient(address, new_peer_id(), Role.WORKER, access, get_timeout_seconds=GET_TIMEOUT_SECONDS)

    def make_agent(make_connector: MakeConnector) -> Agent:
        return ServiceAgent(config, make_connector, load_executor(config), connect_storage, status.write)

    try:
        return run_agent(config, make_agent, status, runs_tasks=False)
    finally:
        end_others_born_with(WORKER_CONFIG_VARIABLE)  # local child processes of the executor


if __name__ == "__main__":
    sys.exit(main())
