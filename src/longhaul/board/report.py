"""`report.html`: facts, words and figures put together and written.

Enters: a run's folder. Leaves: one page that needs neither network nor other files.
Never knows: torch, or a process that trains.
"""

import importlib.util
from pathlib import Path

from longhaul.board.facts import read_facts
from longhaul.board.page import render
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.files import write_bytes
from longhaul.logbook.folder import RunFolder


def write_report(folder: RunFolder, clock: Clock, out: Path | None = None) -> Path:
    """Write a run's page and return where it lies: `report.html` in the run's folder, or `out`.

    Raises:
        LonghaulError: it cannot be written there, or Plotly is not installed.
    """
    path = out or folder.path / "report.html"
    page = render(read_facts(folder, clock), plotly_script())
    try:
        write_bytes(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise LonghaulError(
            f"{path}: cannot be written: {error.strerror or error}", "give another --out FILE"
        ) from error
    return path


def plotly_script() -> str:
    """Plotly's own script, from the installed package, which is not imported for it.

    Raises:
        LonghaulError: it is not there.
    """
    found = importlib.util.find_spec("plotly")
    for folder in found.submodule_search_locations or () if found else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    raise LonghaulError("the package plotly is not installed", "pip install plotly")
