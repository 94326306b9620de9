"""Shut down a cluster, with its scheduler and workers, from a client. By default, a scheduler is protected and refuses.

Prints::

    protected: ProtectedError
    the cluster has ended
"""

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProtectedError

with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    try:
        client.shutdown()
    except ProtectedError as error:
        print("protected:", type(error).__name__)

with SchedulerClusterCombo(n_workers=1, protected=False) as cluster:
    Client(address=cluster.get_address()).shutdown()
    print("the cluster has ended")
