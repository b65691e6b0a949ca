"""A drill's process: `python -m longhaul.cli.disturbed COMMAND RUN …` is `longhaul COMMAND RUN …`
with the faults that a drill has left in the run's folder. They act on the process itself, or, where
it trains as a supervisor, on each of its workers.
"""

import sys
from pathlib import Path

from longhaul.cli.entry import main
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.laid import inject_around

if __name__ == "__main__":
    inject_around(RunFolder(Path(sys.argv[2])))
    main()
