"""Standard input, output and error, which a daemon may have closed before it started us.

Enters: a process as it was started. Leaves: one whose three standard files are open.
Never knows: what is written to them.
"""

import os
import sys


def open_standard_files() -> None:
    """Open those that are closed on nothing; else pipes and logs would take their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
