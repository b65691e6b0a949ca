"""A drill's worker: `python -m longhaul.cli.disturbed COMMAND RUN …` is `longhaul COMMAND RUN …`
in a process with the faults that a drill has laid into the run's folder.

Enters: arguments. Leaves: what the command leaves. Never knows: what the faults are.
"""

import sys
from pathlib import Path

from longhaul.cli.main import main
from longhaul.logbook.folder import RunFolder

if __name__ == "__main__":
    from longhaul.run.disturbed import disturb

    disturb(RunFolder(Path(sys.argv[2])))
    main()
