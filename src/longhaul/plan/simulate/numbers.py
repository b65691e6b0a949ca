"""Every decision about the numbers of a simulated run, made by `recover/policy.py` itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.records import Decision, Finding, Safe
from longhaul.core.units import Seconds
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.draft import asks_for_cause
from longhaul.recover.plan import WHO, Plan, Situation, sizes_of
from longhaul.recover.policy import decide
from longhaul.recover.probation import Course, good_states

KINDS: Final = {"loss-spike": 0.6, "divergence": 0.3, "non-finite": 0.1}
"""Kind of incident → its share; assumed, after OPT-175B's chronicle and PaLM's spikes."""
_LOOK_EVERY_STEPS = 500
"""Steps between two looks at whether a lowered rate may rise again; a live run looks every 10."""


@dataclass(frozen=True, slots=True)
class Cure:
    """What is done about an incident."""

    plan: Plan
    replayed_steps: int
    """Steps computed again to find the cause, before anything is done."""


class Numbers:
    """Policy and ledger of one simulated run."""

    def __init__(self, recipe: Recipe, blocks_per_step: int, step_s: Seconds, clock: Clock) -> None:
        self._recipe, self._settings = recipe, recipe
        self._blocks, self._step_s, self._clock = blocks_per_step, step_s, clock
        self._course = Course()
        self._ledger = LedgerState()
        self._looked = 0

    @property
    def ledger(self) -> LedgerState:
        """What was decided so far."""
        return self._ledger

    def gone_back(self, step: int) -> None:
        """The run goes on from an earlier step."""
        self._course = self._course.back_to(step)

    def incident(
        self, kind: str, first_step: int, step: int, states: Sequence[Safe]
    ) -> Cure | None:
        """What follows a finding of a kind with its first sign at a step, made at another; None:
        nothing does.
        """
        finding = Finding(
            kind=kind, severity="alarm", attempt=1, step=step, first_step=first_step,
            first_draw=(first_step - 1) * self._blocks, time=self._clock.wall(),
            sentence=f"a simulated {kind}",
        )  # fmt: skip
        self._course = Course(step, self._course.troubles).after(finding)
        plan = decide(self._situation(step, states), [finding])
        if plan is None:
            return None
        self._decided(plan, step)
        replays = asks_for_cause(plan, self._settings.recover)
        return Cure(plan, self._settings.recover.diagnose_steps if replays else 0)

    def is_look_due(self, step: int) -> bool:
        """Whether it is time to see if a lowered rate may rise again."""
        return bool(self._ledger.recoveries) and step - self._looked >= _LOOK_EVERY_STEPS

    def look(self, step: int, states: Sequence[Safe]) -> None:
        """Let a lowered learning rate rise again where health allows it."""
        self._looked = step
        self._course = Course(step, self._course.troubles)
        plan = decide(self._situation(step, states))
        if plan is not None:
            self._decided(plan, step)

    def _decided(self, plan: Plan, step: int) -> None:
        decision = Decision(
            kind="recover", attempt=1, step=step, time=self._clock.wall(), who=WHO,
            reason=plan.reason, data=plan.decision_data(step),
        )  # fmt: skip
        self._ledger = fold(self._ledger, decision)
        to = plan.rollback.step if plan.rollback else step
        self._settings = with_overrides(self._recipe, self._ledger.overrides_at(to))
        self._looked = to

    def _situation(self, step: int, states: Sequence[Safe]) -> Situation:
        course, limits = self._course, self._settings.recover
        probation = sizes_of(limits, self._settings.total_steps()).probation
        return Situation(
            step=step, draw=step * self._blocks, blocks_per_step=self._blocks,
            seconds_per_step=self._step_s, settings=self._settings, ledger=self._ledger,
            good=good_states(states, course, probation), states=tuple(states),
            troubles=course.troubles, quiet_since=course.quiet_since,
        )  # fmt: skip
