"""The watch over a run's ranks: what it learns of their silences outlives attempt and supervisor.

Enters: ranks as they look, again and again. Leaves: verdicts; `workers/silences.json`, with which
the next supervisor begins.
Never knows: processes, or what is done about a hang.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from longhaul.config.recover import SuperviseSection
from longhaul.core.files import write_json
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.ranks.progress import PHASES, Phase
from longhaul.supervise.ranks.watchdog import Rank, Verdict, doubted, judge, kept, learn

_FORMAT = 1
_WRITE_BEYOND = 1.25
"""A silence that is longer than what is kept by this factor is written at once: the supervisor may
be killed. What has become less is written when it ends."""
_MOST_BYTES: Bytes = 4096
_SHORT_S: Seconds = 0.5
"""No deadline grows from it at usual settings; it is not worth a write."""


class Watch:
    """Looks at the ranks of one run, from attempt to attempt (`blink` between them).

    Args:
        folder: the run.
        settings: `[supervise]`.
    """

    def __init__(self, folder: RunFolder, settings: SuperviseSection) -> None:
        self._path = silences_path(folder)
        self._settings = settings
        self._kept = read_silences(self._path)
        self._learned = kept(self._kept)

    def look(self, now: Seconds, began: Seconds, ranks: Sequence[Rank]) -> Verdict:
        """Learn from how the ranks look now, and judge; arguments as of `watchdog.judge`."""
        self._learned = learn(self._learned, ranks, now)
        longest = self._longest()
        if any(longest[p] > _WRITE_BEYOND * self._kept.get(p, _SHORT_S) for p in longest):
            self._keep(longest)
        verdict = judge(now, began, ranks, self._learned, self._settings)
        if verdict.hung:
            self._learned = doubted(self._learned, ranks, verdict)
            self._keep(self._longest())
        return verdict

    def blink(self, now: Seconds = 0.0) -> Seconds:
        """Nobody could look for a while, and ranks could give no signs: begin anew, `now`."""
        self._learned = self._learned.blinked()
        return now

    def close(self) -> None:
        """Keep what holds now, of which some may be less than before."""
        if (longest := self._longest()) != self._kept:
            self._keep(longest)

    def _longest(self) -> dict[Phase, Seconds]:
        seen = {phase: self._learned.longest(phase) for phase in self._learned.silences}
        return {p: round(s, 3) for p, s in seen.items() if p != "prepare" and s > _SHORT_S}

    def _keep(self, longest: Mapping[Phase, Seconds]) -> None:
        self._kept = dict(longest)
        with suppress(OSError):  # no run ends for want of it
            write_json(self._path, {"format": _FORMAT, "longest_s": longest})


def silences_path(folder: RunFolder) -> Path:
    """Where the longest silences of healthy ranks are kept."""
    return folder.workers / "silences.json"


def read_silences(path: Path) -> dict[Phase, Seconds]:
    """Phase → longest silence as it was kept; nothing of what is not as it was written."""
    body: Any = None
    with suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        body = json.loads(file.read(_MOST_BYTES))
    seconds = body.get("longest_s") if isinstance(body, dict) else None
    if not isinstance(seconds, dict) or body.get("format") != _FORMAT:
        return {}
    return {
        phase: float(seconds[phase])
        for phase in PHASES
        if isinstance(seconds.get(phase), int | float) and 0 < seconds[phase] < math.inf
    }
