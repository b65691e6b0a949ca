"""`longhaul launch`: a recipe's way into a cluster, and the job's own part there.

`launch.py` runs where the user is: it captures, asks for capacity and submits. `launched.py` runs
in the job: it looks at the nodes it was given, checks, and then trains by `longhaul train`.
"""
