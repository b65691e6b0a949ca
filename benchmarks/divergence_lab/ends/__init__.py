"""How runs end: the same small run undisturbed, with a fault and nobody acting, and with a fault
and the policy acting.

    python -m benchmarks.divergence_lab.ends [--processes 2] [--quick] [--part held-out]

`cases.py` declares them, `faults.py` does to the real trainer what no setting can, `drive.py`
trains one form of a case through `longhaul train`'s own loop, `make.py` makes each once, `score.py`
compares the ends, `__main__.py` is the command. Never knows: detectors or the policy; a run is
judged by its final loss alone.
"""
