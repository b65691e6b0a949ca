"""Where the `longhaul` command begins: it can be told to stop before it has imported anything.

Python ends at once on a scheduler's notice that nobody handles, with a code that no scheduler
takes for "start me again"; importing the command line takes a quarter of a second.
"""

import sys

from longhaul.core.signals import leave_on_interrupt, leave_on_notices

_TRAINING = ("train", "worker")


def main() -> None:
    """Run a command."""
    leave_on_interrupt()
    if sys.argv[1:2] and sys.argv[1] in _TRAINING:
        leave_on_notices()
    from longhaul.cli.main import main as run

    run()
