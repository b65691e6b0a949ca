"""The divergence lab: small runs that go wrong on purpose, to judge the judge.

    python -m benchmarks.divergence_lab [--processes 2] [--markdown] [--quick]

`runs.py` and `causes.py` list the runs, `drive.py` makes them with longhaul's own trainer,
`truth.py` says from the loss what became of each, `split.py` which may be looked at while limits
are set, `score.py` compares findings with the truth, `traces.py` keeps the signals.
"""
