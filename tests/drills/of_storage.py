"""The incident book's rows about storage: S1 to S7."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from drills.machine_drill import (
    MachineDrill,
    Played,
    began,
    poisoned,
    prepare,
    usual_tale,
)
from drills.runs import LONGEST_S
from drills.stage import INTERVAL_STEPS, STEPS, Stage
from drills.story import Timeline
from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Seconds
from longhaul.store.catalogue import catalogue
from longhaul.store.transfers import Patience

_SLOW_S: Seconds = 0.5
"""That each file of a checkpoint takes longer to write, in S5."""
_AUTO_STEPS = 320
"""An interval that is `auto` begins with 250."""


def storage() -> tuple[MachineDrill, ...]:
    """The drills."""
    return (
        MachineDrill(
            name="S1", happened="a rank dies in the middle of writing a checkpoint",
            faults=("torn-write@rank0:step25",), failures=(("killed", 0),), check=_never_chosen,
        ),
        MachineDrill(
            name="S2", happened="one bit of the newest checkpoint is wrong, then a rank dies",
            faults=("bitflip-file@rank0:step28", "kill@rank1:step29"), failures=(("killed", 1),),
            check=_refused,
        ),
        MachineDrill(
            name="S3", happened="the disk is full in the middle of a save",
            faults=("enospc:2@rank0:step25",), check=_intact, tale=_saves,
            blinded=("checkpoint.interval_steps=0",),
        ),
        MachineDrill(
            name="S4", happened="nothing is left here, and a store hangs while a file comes",
            faults=("preempt@rank0:step45",), codes=(16, 0), play=_store_hangs,
            tale=_fetches, from_newest=False,
            blinded=("checkpoint.remote=[]",),
        ),
        MachineDrill(
            name="S5", happened="writing a checkpoint takes seconds",
            options=("checkpoint.interval_steps='auto'", f"train.steps={_AUTO_STEPS}"), pace_s=0.04,
            faults=(f"slow-save:{_SLOW_S}@rank0:step1-{_AUTO_STEPS}",), steps=_AUTO_STEPS,
            check=_beside_training, tale=_stalls, blinded=("checkpoint.interval_steps=10",),
        ),
        MachineDrill(
            name="S6", happened="the remote store is away when saves are due",
            pace_s=0.1,
            faults=("store-gone:1@rank0:step15",), play=_with_store, check=_sent_in_order,
            tale=_sends, blinded=("checkpoint.remote=[]",),
        ),
        MachineDrill(
            name="S7", happened="stopped, and its newest checkpoints are gone at the restart",
            faults=("preempt@rank0:step45",), codes=(16, 0), play=_older_is_found,
            check=_gap_is_told, from_newest=False, tale=_goes_back,
            blinded=("checkpoint.keep_last=1",),
        ),
    )  # fmt: skip


def _never_chosen(story: Timeline) -> Iterator[str]:
    if [start.step for start in began(story)] != [0, 20]:
        yield f"it went on from {began(story)[-1].step}"
    if "removed a partial step-30 of attempt 1" not in story.log:
        yield "nobody says that half a checkpoint was found and removed"


def _refused(story: Timeline) -> Iterator[str]:
    newest = max(_saved(story, attempt=1))
    if poisoned(story) != [newest]:
        yield f"poisoned are {poisoned(story)}, not {newest}"
    if began(story)[-1].step != newest - INTERVAL_STEPS:
        yield f"it went on from {began(story)[-1].step}"
    if f"refused step-{newest}" not in story.log and f"step-{newest}/" not in story.log:
        yield "nobody says that it was refused"


def _saved(story: Timeline, attempt: int) -> list[int]:
    return [
        event.step
        for event in story.events("checkpoint")
        if event.attempt == attempt and event.data["health"] == "verified"
    ]


def _intact(story: Timeline) -> Iterator[str]:
    """The save that failed cost nothing, and the journal has every step."""
    failed = story.events("checkpoint-failed")
    if not failed or "no space left" not in failed[0].data["message"]:
        yield "no save is told to have failed for want of space"
    elif "is intact" not in failed[0].data["message"]:
        yield f"it does not say what is intact: {failed[0].data['message']}"
    steps = [record.step for record in story.steps]
    if steps != list(range(1, STEPS + 1)):
        yield "the journal lacks steps"


def _saves(story: Timeline) -> str:
    failed = [str(event.step) for event in story.events("checkpoint-failed")]
    saved = _saved(story, attempt=1)
    return f"save at {', '.join(failed)} failed; saved {', '.join(map(str, saved))}"


def _beside_training(story: Timeline) -> Iterator[str]:
    saves = [e for e in story.events("checkpoint") if e.data["health"] == "verified"]
    if not saves:
        yield "nothing was saved"
        return
    first = saves[0]
    meanwhile = [s for s in story.steps if first.step < s.step and s.time < first.time]
    took, stall = first.data["seconds_since_save"], first.data["stall_s"]
    if took < 3 * _SLOW_S:
        yield f"the save took {took:.2f} s, so nothing was slow"
    if not meanwhile or stall > 0.2 * took:
        yield f"training stood {stall:.2f} s of the {took:.2f} s that a save took"
    if not any(s.seconds.get("checkpoint_stall") for s in story.steps):
        yield "no stall is booked"
    chosen = story.events("save-interval")
    if len(chosen) < 2 or "a save costs" not in chosen[-1].data["reason"]:
        yield "the interval was not chosen anew from what a save costs"


def _stalls(story: Timeline) -> str:
    saves = [e for e in story.events("checkpoint") if e.data["health"] == "verified"]
    words = [
        f"save of {e.data['seconds_since_save']:.1f} s stalls {e.data['stall_s'] * 1e3:.0f} ms"
        for e in saves[:1]
    ]
    chosen = story.events("save-interval")
    return "; ".join([*words, *(f"interval now {e.data['steps']}" for e in chosen[-1:])])


def _with_store(stage: Stage, drill: MachineDrill) -> Played:
    prepare(stage, drill, _remote(_place(stage)))
    return (stage.end(),), drill.check


def _place(stage: Stage, name: str = "store") -> Path:
    return stage.room / f"{stage.folder.name}-{name}"


def _remote(*places: Path) -> str:
    return f"checkpoint.remote={[str(place) for place in places]}"


def _sent_in_order(story: Timeline) -> Iterator[str]:
    sent = [event.step for event in story.events("uploaded")]
    away, back = story.events("store-away"), story.events("store-back")
    if not (away and back):
        yield "nobody says that the store was away, or is back"
        return
    if sent != sorted(sent) or sent[-1:] != [STEPS]:
        yield f"sent were {sent}"
    due = [step for step in sent if step >= away[0].step]
    if not due or due[0] != away[0].step:
        yield f"what was due at step {away[0].step} was not the first to be sent"


def _sends(story: Timeline) -> str:
    away = ", ".join(f"away at {event.step}" for event in story.events("store-away")[:1])
    sent = ", ".join(str(event.step) for event in story.events("uploaded"))
    return f"{away}; sent {sent}"


def _older_is_found(stage: Stage, drill: MachineDrill) -> Played:
    folder = prepare(stage, drill)
    first = stage.end()
    for checkpoint in catalogue(folder.checkpoints):
        if checkpoint.step > 20:
            shutil.rmtree(checkpoint.path)
    return (first, stage.end()), drill.check


def _gap_is_told(story: Timeline) -> Iterator[str]:
    stopped = began(story)[0].attempt
    reached = max(s.step for s in story.steps if s.attempt == stopped)
    start = began(story)[-1]
    if start.step != 20:
        yield f"it went on from {start.step}"
    said = f"step {reached} was saved, and no copy of it can be had; going on from step 20"
    if said not in story.log:
        yield "nobody says what is lost, and that it is made again"
    again = [s for s in story.steps if s.attempt != stopped and s.step <= reached]
    if not again or not all(s.redone for s in again):
        yield "steps that are made again are not marked as such"


def _goes_back(story: Timeline) -> str:
    ways = (str(start.step) for start in began(story)[1:])
    return f"saved at {max(_saved(story, attempt=1), default=0)}, gone on from {', '.join(ways)}"


def _store_hangs(stage: Stage, drill: MachineDrill) -> Played:
    """Two stores hold the run; here all is lost, and of the first store a file never comes."""
    first, second = _place(stage, "first"), _place(stage, "second")
    folder = prepare(stage, drill, _remote(first, second))
    code = stage.end()
    # The end may have come while the last one was on its way; that one is never chosen.
    sent = [path.parent for path in (first / folder.name).glob("step-*/manifest.json")]
    if not sent:
        raise NeedsPerson(f"nothing was sent to {first}")
    shutil.rmtree(folder.checkpoints)
    newest = max(sent, key=_step_of)
    for later in (second / folder.name).glob("step-*"):
        # It came there and not here: the store that hangs would not be asked.
        if _step_of(later) > _step_of(newest):
            shutil.rmtree(later)
    stuck = sorted(newest.glob("*.safetensors"))[-1]
    stuck.unlink()
    os.mkfifo(stuck)  # whoever opens it waits for somebody who writes
    stage.lay()
    waited = "no answer within"
    with stage.train() as training:
        training.wait_until(
            "a deadline that passes", lambda: waited in training.output,
            LONGEST_S + Patience().answer_s,
        )  # fmt: skip
        letting_go = threading.Thread(target=_let_go, args=(stuck,), daemon=True)
        letting_go.start()
        last = training.wait(LONGEST_S)

    def check(story: Timeline) -> Iterator[str]:
        fetched = story.events("fetched")
        if [event.data["tier"] for event in fetched] != [f"{second}/{folder.name}"]:
            yield f"it was fetched from {[event.data['tier'] for event in fetched]}"
        if began(story)[-1].step != _step_of(newest):
            yield f"it went on from {began(story)[-1].step}"
        if "trying the next copy" not in story.log:
            yield "nobody says that another copy is tried"

    return (code, last), check


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def _let_go(stuck: Path) -> None:
    """End the waiting of threads that were left behind; what they get is no use any more."""
    with stuck.open("wb"):
        pass


def _fetches(story: Timeline) -> str:
    words = [f"step-{e.step} fetched from {Path(e.data['tier']).parent.name}"
             for e in story.events("fetched")]  # fmt: skip
    return "; ".join(words) or usual_tale(story)
