"""Scaling: decides how many units each worker manager should have. Pure.

The shell passes an `Elastic` to the core, which calls it through the interface in `core/cluster.py`.

    core -> elastic.py: demand.py, units.py -> AskPolicy -> scaling policy -> PolicyAnswered -> Desired, Drain
                      -> late_workers.py: limits of workers whose tasks begin late
"""
