"""Cause before cure in a live run: the search for a cause, with the step that the trainer lends.

So the device holds no second model and no second optimizer; the states that are set out from lie on
the host. All ranks lend theirs, and search together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Safe, StepRecord
from longhaul.diagnose.cause import Verdict
from longhaul.diagnose.signs import Series, Symptom, symptom_of, symptom_since
from longhaul.logbook.run_log import RunLog
from longhaul.recover.plan import Plan
from longhaul.run.diagnose.live_search import FindCause, NoReplay, look_into, unknown
from longhaul.run.diagnose.recorded import figures_of
from longhaul.train.trainer import Trainer

LEAD_STEPS = 12
"""Steps before the first sign that other data and lower rates set out from, where there are."""
_LEAST_LEAD_STEPS = 6
"""A state that is nearer to the first sign is only set out from where there is no other."""


def question_of(
    plan: Plan, line: Sequence[StepRecord], states: Sequence[Safe], segment: str
) -> FindCause:
    """What is to be looked into, and from which state.

    `line` has the records of the last steps that the run stands on, in order; `states` can be gone
    back to, by rising step; before `segment`, the trainer's, other settings were in force. NoReplay
    if nothing stands out, or no state lies before the first sign.
    """
    if not line or line[-1].segment != segment:
        raise NoReplay("the settings have been changed since")
    symptom = _symptom(plan, tuple(map(figures_of, line)))
    begin = min(record.step for record in line if record.segment == segment) - 1
    before = [state for state in states if begin <= state.step < symptom.first_step]
    if not before:
        raise NoReplay(
            f"no state is left from between the last change of settings (step {begin:,}) and the "
            f"first sign (step {symptom.first_step:,})"
        )
    last = symptom.first_step - 1
    well_before = [state for state in before if state.step <= last - _LEAST_LEAD_STEPS]
    origin = well_before[-1] if well_before else before[0]
    steps = tuple(record for record in line if origin.step < record.step <= symptom.step)
    return FindCause(
        symptom,
        origin,
        steps,
        set_out=max(last - LEAD_STEPS, origin.step),
        first_sign=min(symptom.first_step, plan.first_step or symptom.first_step),
        only_data=plan.rollback is None and "lower-lr" not in plan.actions,
    )


def _symptom(plan: Plan, recorded: Series) -> Symptom:
    # The detector of divergence sees its first sign in what looks like noise to a few steps.
    if plan.cause == "divergence" and (since := symptom_since(recorded, plan.first_step)):
        return since
    seen = symptom_of(recorded, recorded[-1].step)
    if seen.kind == "none" and plan.cause == "loss-spike":
        seen = symptom_since(recorded, plan.first_step) or seen  # many a little high, none very
    if seen.kind == "none":
        raise NoReplay("nothing stands out in loss or gradient norm of the last steps")
    if seen.kind == plan.cause and 0 < seen.first_step - plan.first_step <= LEAD_STEPS:
        return replace(seen, first_step=plan.first_step)
    return seen  # of spikes that come again and again the last one is looked into


@dataclass(eq=False)
class LiveCause:
    """Looks for causes with the live trainer, and nothing more once the run has to stop soon."""

    _run_log: RunLog
    _report: Say
    _stop_wanted: Callable[[], bool]
    _known: tuple[tuple[str, str, int], Verdict] | None = None

    def find(
        self, trainer: Trainer, plan: Plan, line: Sequence[StepRecord], states: Sequence[Safe]
    ) -> Verdict:
        """The cause of what led to a plan. It is undetermined where it could not be looked for,
        whatever the reason: no recovery waits for it. Of `line` and `states` see `question_of`.
        """
        step = trainer.position.step
        matter = trainer.identity.segment, plan.cause, plan.first_step
        if self._known is not None and self._known[0] == matter:
            return self._known[1]  # its decision could not be written; it is the same matter still
        figures: dict[str, Any] = {}
        try:
            question = question_of(plan, line, states, trainer.identity.segment)
        except Exception as error:  # noqa: BLE001 (no recovery fails for want of a cause)
            verdict = unknown(error)
        else:
            self._report(f"step {step:>6}  what is the cause? {question.symptom}")
            trainer.coordinator.order(question)
            checkpoints = self._run_log.folder.checkpoints
            verdict, figures = look_into(question, trainer, checkpoints, self._stop_wanted)
        self._run_log.emit(
            EventKind.CAUSE, step, cause=verdict.cause, rung=verdict.rung, reason=verdict.sentence,
            evidence=dict(verdict.evidence), **figures,
        )  # fmt: skip
        self._report(f"step {step:>6}  cause: {verdict.cause}; {verdict.sentence}")
        self._known = matter, verdict
        return verdict
