"""Call a function in every processor before its first task, to load a model or open a connection once.

Prints::

    ['0.90 EUR', '1.80 EUR']
"""

import warehouse

from scaler import Client, SchedulerClusterCombo

# module.path:function(literals)
with (
    SchedulerClusterCombo(n_workers=2, preload="warehouse:load('EUR', discount=0.1)") as cluster,
    Client(address=cluster.get_address()) as client,
):
    print(client.map(warehouse.price, ["apple", "pear"]))
