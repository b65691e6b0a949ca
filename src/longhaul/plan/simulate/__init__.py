"""A run of days on a thousand nodes, simulated in seconds: nodes fail by cause at published rates,
and what follows is decided by the code that decides in a live run.

A `Scenario` enters (a cluster, a run, how failures are seen and answered, each figure with its
source); `Outcome`s leave, one a seed. simpy keeps the time. The decisions are those of
`supervise/restart.py`, `supervise/nodes/` and `recover/policy.py`, called with records and a
simulated clock; nothing of them is written a second time here.
"""
