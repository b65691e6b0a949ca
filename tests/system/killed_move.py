"""`longhaul` killed at its N-th moment: `killed_move.py N COMMAND…`; 0 prints how many there were.

A moment is a call into a store, or a change of names on the local disk: between any two of them the
process may die.
"""

import atexit
import os
import signal
import sys
import threading

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register

_LAST = int(sys.argv[1])
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir")
_count, _lock = 0, threading.Lock()


def moment() -> None:
    global _count
    with _lock:
        _count += 1
        if _count == _LAST:
            os.kill(os.getpid(), signal.SIGKILL)


def heard(event: str, _: tuple[object, ...]) -> None:
    if event in _CHANGES:
        moment()


register(Point.STORE_CALL, lambda *_: moment())
sys.addaudithook(heard)
if _LAST == 0:
    atexit.register(lambda: print(f"moments: {_count}", flush=True))
sys.argv = ["longhaul", *sys.argv[2:]]
main()
