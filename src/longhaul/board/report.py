"""`report.html`: facts, words and figures put together and written.

Enters: a run's folder. Leaves: one page that needs neither network nor other files.
Never knows: torch, or a process that trains.
"""

import importlib.util
from pathlib import Path

from longhaul.board.facts import read_facts
from longhaul.board.page import render
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.files import write_bytes
from longhaul.logbook.folder import RunFolder


def write_report(folder: RunFolder, clock: Clock, out: Path | None = None) -> Path:
    """Write a run's page and return where it lies: `report.html` in the run's folder, or `out`.

    Raises:
        UsageError: it cannot be written there.
        LonghaulError: Plotly is not installed.
    """
    path = folder.path / "report.html" if out is None else out
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "the folder it should lie in does not exist"
        raise UsageError(f"{path}: {what}", "give a file with --out FILE")
    page = render(read_facts(folder, clock), plotly_script())
    try:
        write_bytes(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
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
