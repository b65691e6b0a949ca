"""`longhaul` that waits less long for a run's folder that is away: `python impatient.py COMMAND …`.

Long enough for another run to begin in its place meanwhile.
"""

from longhaul.cli.entry import main
from longhaul.supervise import ownership
from longhaul.train.checkpoint_manager import CheckpointManager

GONE_S = 3.0

if __name__ == "__main__":
    CheckpointManager.refuse_if_gone.__defaults__ = (GONE_S,)
    ownership.GONE_S, ownership._AFTER_WORKERS_S = GONE_S, GONE_S / 2
    main()
