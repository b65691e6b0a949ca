"""`longhaul drill recovery`: a run that three things befall against the same run left alone.

Enters: nothing. Leaves: both validation losses at the same number of good tokens, and whether the
disturbed run's story is in its tree and its report.
Never knows: torch; the runs are processes.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.recover.plan import WHO
from longhaul.run.drill.numbers import set_up
from longhaul.run.drill.of_numbers import Drill, blocks_of
from longhaul.run.drill.recipe import MODULE
from longhaul.run.drill.resume import finish
from longhaul.run.drill.story import Expected, Story, complaints
from longhaul.supervise.faults.numbers import Fault, lay
from longhaul.supervise.ranks.process import Worker

Say = Callable[[str], None]
_LONGEST_RUN_S: Seconds = 180.0
_MOST = 1.02
"""Largest validation loss, as a multiple of the undisturbed run's."""
_OPTIONS = ("train.steps=800", "optim.schedule.shape='cosine'")
_FAULTS = (
    Fault("nan-loss", draws=blocks_of(180, 5)),
    Fault("noise-tokens", draws=blocks_of(400, 16)),
    Fault("jolt", 0.6, made=(650, 656)),
)
_CAUSES = ("non-finite", "loss-spike")
_BEFALLS = "5 batches of NaN, 16 batches of noise, weights jolted for 6 steps"


def drill_recovery(room: Path, say: Say) -> bool:
    """Run the drill; True if the disturbed run ends as good as the other, with its story told."""
    began = time.monotonic()
    nothing = Drill("undisturbed", "nothing", Expected(), _OPTIONS)
    three = Drill("disturbed", _BEFALLS, Expected(kinds=_CAUSES, actions=()), _OPTIONS, _FAULTS)
    alone, disturbed = (_run(drill, room) for drill in (nothing, three))
    wrong = [*complaints(alone, nothing.expected), *_wrong(disturbed)]
    ratio = disturbed.loss / alone.loss
    if not ratio <= _MOST:
        wrong.append(f"its loss is {ratio:.4f} of the other's, more than {_MOST:g}")
    say(f"befalls the run: {_BEFALLS}")
    for decision in disturbed.decisions:
        say(f"  step {decision.step:>4}: {decision.reason}")
    tokens = disturbed.steps[-1].step * disturbed.steps[-1].tokens
    say(
        f"validation loss after {tokens:,} good tokens: {alone.loss:.4f} undisturbed, "
        f"{disturbed.loss:.4f} disturbed ({ratio - 1:+.2%}, at most {_MOST - 1:+.0%})"
    )
    for complaint in wrong:
        say(f"  {complaint}")
    say(f"{time.monotonic() - began:.0f} s: {'FAILED' if wrong else 'PASSED'}")
    return not wrong


def _run(drill: Drill, room: Path) -> Story:
    folder = set_up(drill, room)
    lay(folder, drill.faults, blind=False)
    seconds = finish(folder, MODULE)
    return Story(folder, (0,), seconds)


def _wrong(story: Story) -> Iterator[str]:
    back = [d for d in story.decisions if d.who == WHO and d.data["rollback"]]
    if len(back) < 3:
        yield f"it went back {len(back)} times, not three"
    tree = _said(story.folder, "tree")
    _said(story.folder, "report")
    page = (story.folder.path / "report.html").read_text(encoding="utf-8")
    for decision in back:
        cause = f"{decision.data['cause']} at step {decision.step}"
        yield from (f"{cause}: not in the {w}" for w, t in (("tree", tree), ("report", page))
                    if str(decision.data["cause"]) not in t)  # fmt: skip


def _said(folder: RunFolder, command: str) -> str:
    worker = Worker(folder, rank=1, command=(command,))
    worker.wait(_LONGEST_RUN_S)
    return worker.log.read_text(errors="replace")
