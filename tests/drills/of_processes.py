"""The incident book's rows about processes: M2 to M4, M14 to M18."""

import signal
from collections.abc import Iterator

from drills.machine_drill import (
    MachineDrill,
    Played,
    began,
    failures,
    poisoned,
    prepare,
    started_again,
    usual_tale,
)
from drills.moments import Moment, Phase, wait_for
from drills.runs import LONGEST_S
from drills.stage import INTERVAL_STEPS, SOON_NOTICED, Stage
from drills.story import Timeline
from longhaul.core.records import Decision
from longhaul.supervise.pipes import STOPS

_NOTICES: tuple[tuple[Phase, signal.Signals], ...] = (
    ("start-up", signal.SIGTERM),
    ("step", signal.SIGUSR1),
    ("save", signal.SIGUSR2),
    ("evaluation", signal.SIGTERM),
)
_FROM_STEPS = (0, 5, 15, 25)
_TENSOR_CLASSES = ("weights", "gradients", "optimizer", "activations")


def processes() -> tuple[MachineDrill, ...]:
    """The drills."""
    return (
        MachineDrill(
            name="M2", happened="a CUDA error in one rank",
            faults=("cuda-error@rank1:step25",), failures=(("cuda-error", 1),),
            check=_from_the_last_save,
        ),
        MachineDrill(
            name="M3", happened="SIGSTOP to one rank; later one does not come to a collective",
            world=SOON_NOTICED,
            faults=("stop@rank1:step25", "hang-collective@rank0:step45"),
            failures=(("hang", 1), ("hang", 0)), check=_hung,
        ),
        MachineDrill(
            name="M4", happened="a collective of three ranks fails, because one has left it",
            processes=3, faults=("exception@rank1:step25",),
            failures=(("unknown: RuntimeError: an invariant that nobody had thought of does not "
                       "hold", 1),), check=_from_the_last_save,
        ),
        MachineDrill(
            name="M14", happened="SIGKILL to the supervisor",
            faults=("supervisor-kill@rank0:step25",), codes=(-signal.SIGKILL, 0),
            play=started_again, check=_no_step_lost,
            tale=_saved_and_went_on, blinded=("supervise.grace_s=0.001",),
        ),
        MachineDrill(
            name="M15", happened="notice before the first step, in a step, a save, an evaluation",
            pace_s=0.03, codes=(16, 16, 16, 16, 0), play=_preempted, check=_no_step_lost,
            tale=_saved_and_went_on, blinded=("supervise.grace_s=0.001",),
        ),
        MachineDrill(
            name="M16", happened="the loader of one rank dies",
            faults=("loader-crash@rank1:step25",),
            failures=(("unknown: RuntimeError: the reader of batches died (drill)", 1),),
            check=_from_the_last_save,
        ),
        MachineDrill(
            name="M17", happened="one rank runs out of memory", options=("model.dropout=0",),
            faults=("oom:2@rank1:step25",), failures=(("out-of-memory", 1),), same="losses",
            check=_smaller_micro_batch,
        ),
        MachineDrill(
            name="M18", happened="the same crash at the same step after every restart",
            faults=("exception@rank1:step25:attempt*",), codes=(17,),
            failures=(("unknown: RuntimeError: an invariant that nobody had thought of does not "
                       "hold", 1),) * 4, check=_went_further_back,
        ),
    )  # fmt: skip


def _from_the_last_save(story: Timeline) -> Iterator[str]:
    """No more is lost than what came after the last save but one: the last may not be verified."""
    for failure, start in zip(failures(story), began(story)[1:], strict=False):
        lost = failure.data["reached"] - start.step
        if lost >= 2 * INTERVAL_STEPS:
            yield f"{lost} steps were lost"
        if failure.data["cause"] not in story.log:
            yield "the segment that follows does not say why it was opened"


def _hung(story: Timeline) -> Iterator[str]:
    yield from _from_the_last_save(story)
    for failure in failures(story):
        if "no rank gave a sign of life" not in failure.data["said"]:
            yield "it does not say how long nothing was heard"
        if not failure.seconds.get("detection"):
            yield "the time it took to notice is not booked"
    if not list(story.folder.workers.glob("*.before-*.stacks")):
        yield "no stacks are kept"


def _smaller_micro_batch(story: Timeline) -> Iterator[str]:
    told = story.events("out-of-memory")
    if not told or not any(word in told[0].data["message"] for word in _TENSOR_CLASSES):
        yield f"it does not say what grew: {[event.data['message'] for event in told]}"
    made = [record for record in story.records if isinstance(record, Decision)]
    sizes = [r.data["value"] for r in made if r.data.get("path") == "batch.micro_sequences"]
    if sizes != [2]:
        yield f"micro-batches were made {sizes}, not once 2"


def _went_further_back(story: Timeline) -> Iterator[str]:
    reached = [failure.data["reached"] for failure in failures(story)]
    if max(reached) - min(reached) > 2:
        yield f"it failed at steps {reached}"
    from_steps = [start.step for start in began(story)][1:]
    if poisoned(story) != [20] or from_steps != [20, 20, 10]:
        yield f"it went on from {from_steps} and poisoned {poisoned(story)}"
    last = failures(story)[-1].data["follows"]
    if "from an older checkpoint too" not in last:
        yield f"it stopped because of {last}"


def _no_step_lost(story: Timeline) -> Iterator[str]:
    steps = [record.step for record in story.steps]
    if steps != sorted(set(steps)):
        yield f"{len(steps) - len(set(steps))} steps were made twice"


def _saved_and_went_on(story: Timeline) -> str:
    ways = [f"{start.step}" for start in began(story)[1:]]
    return f"saved and gone on from {', '.join(ways)}" if ways else usual_tale(story)


def _preempted(stage: Stage, drill: MachineDrill) -> Played:
    """Four notices, each in another phase, and then left to finish."""
    folder = prepare(stage, drill)
    codes, missed = [], []
    for (phase, number), from_step in zip(_NOTICES, _FROM_STEPS, strict=True):
        with stage.train() as training:
            if phase == "start-up":
                # Before there are workers, an interpreter that starts may hear nothing.
                training.wait_until("workers", lambda: bool(training.ranks()), LONGEST_S)
            elif not wait_for(Moment(phase, from_step, 0.0), folder, training, LONGEST_S):
                missed.append(phase)
            if training.running:
                training.send(number)
            codes.append(training.wait(LONGEST_S))
    codes.append(stage.end())

    def check(story: Timeline) -> Iterator[str]:
        yield from (f"there was no {phase} to be met in" for phase in missed)
        yield from drill.check(story)
        yield from (f"missed: {e.data['message']}" for e in story.events("preemption-missed"))

    assert {number for _, number in _NOTICES} <= STOPS.keys()
    return tuple(codes), check
