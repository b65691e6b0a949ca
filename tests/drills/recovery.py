"""The end of `make drills-numbers`: a run that three things befall, against the run left alone."""

import time
from collections.abc import Iterator
from pathlib import Path

from drills.numbers import set_up
from drills.of_numbers import Drill, blocks_of
from drills.runs import LONGEST_S, NumberFault, Say, start, to_the_end
from drills.story import Expected, Timeline, complaints
from longhaul.logbook.folder import RunFolder
from longhaul.recover.plan import WHO
from longhaul.run.drill.laid import lay

_MOST = 1.02
"""Largest validation loss, as a multiple of the undisturbed run's."""
_OPTIONS = ("train.steps=800", "optim.schedule.shape='cosine'")
_FAULTS = (
    NumberFault("nan-loss", draws=blocks_of(180, 5)),
    NumberFault("noise-tokens", draws=blocks_of(400, 16)),
    NumberFault("jolt", strength="0.6", made=(650, 656)),
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


def _run(drill: Drill, room: Path) -> Timeline:
    folder = set_up(drill, room)
    lay(folder, drill.faults)
    return Timeline(folder, (0,), to_the_end(folder, disturbed=True))


def _wrong(story: Timeline) -> Iterator[str]:
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
    with start(folder, command, log=folder.workers / "1.log") as process:
        process.wait(LONGEST_S)
        return process.output
