"""What other limits or another policy would have found and done in a run that was.

How training would have gone on after an action that was not taken, nobody knows. A decision is
therefore compared up to the point where the two part; from there until the run itself takes another
turn (a rollback, a change, a restart) findings are still made, and decisions are not. The verdict
on a cause is the one that the run came to there, if it looked for one. So the limits that were in
force find and decide what was found and decided.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.draft import asks_for_cause, shaped, verdict_in
from longhaul.recover.health_monitor import Draft, HealthMonitor
from longhaul.recover.plan import WHO, Plan


@dataclass(frozen=True, slots=True)
class Turn:
    """A point at which the run changed its course, or would have."""

    step: int
    """The boundary at which it was decided."""
    segment: str
    findings: tuple[Finding, ...]
    """That would have been made there."""
    would: Plan | None
    """What would have been decided; None for nothing."""
    live: Decision | None = None
    """What the policy had decided; None for nothing."""

    @property
    def steps_lost_live(self) -> int:
        """Steps that the run went back over."""
        back = self.live.data.get("rollback") if self.live else None
        return int(back["from"]) - int(back["to"]) if back else 0

    @property
    def steps_lost(self) -> int:
        """Steps that it would have gone back over."""
        return self.step - self.would.rollback.step if self.would and self.would.rollback else 0


class Backtest:
    """A journal that is judged and decided again, its records in order.

    `segments` has the settings in force in a segment by its number, with the limits to judge by;
    the `recipe` serves where these are not known.
    """

    def __init__(self, recipe: Recipe, segments: Mapping[str, Recipe]) -> None:
        self.steps = 0
        """Step records read."""
        self.findings: tuple[Finding, ...] = ()
        """That would have been made."""
        self.live_findings: tuple[Finding, ...] = ()
        """That were made."""
        self.turns: list[Turn] = []
        self.has_states = False
        """Its records say what could be gone back to; those of an older longhaul do not."""
        self._recipe = recipe
        self._segments = segments
        self._health_monitor = HealthMonitor(recipe)
        self._ledger = LedgerState()
        self._apart = False
        """The run did not do what would have been done, and has taken no other turn since."""
        self._draft: Draft | None = None
        self._attempt = 0
        self._segment = ""
        self._overridden: tuple[dict[str, Any], Recipe] = ({}, recipe)

    @property
    def steps_saved(self) -> int:
        """Steps the run went back over, less those it would have."""
        return sum(turn.steps_lost_live - turn.steps_lost for turn in self.turns)

    def take(self, record: Record) -> None:
        """One more record."""
        if record.attempt != self._attempt:
            self._attempt, self._draft = record.attempt, None
            self._health_monitor.forget_pending()  # who was to act on it was gone
        if self._draft is not None and _is_past(record, self._draft):
            cause = record if isinstance(record, Event) and record.kind == EventKind.CAUSE else None
            self.settle(verdict_in(cause.data) if cause else None)
        if isinstance(record, Finding):
            self.live_findings += (record,)
        elif isinstance(record, Decision):
            self._decided(record)
        else:
            self._happened(record)

    def settle(self, verdict: Verdict | None = None) -> None:
        """Decide as drafted, or as the verdict has it."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        plan = draft.plan
        if verdict is not None and asks_for_cause(plan, draft.situation.limits):
            plan = shaped(plan, verdict, draft.situation)
        step, record = draft.situation.step, draft.record
        decision = Decision(
            kind="recover", attempt=record.attempt, segment=record.segment, step=step,
            time=record.time, who=WHO, reason=plan.reason, data=plan.decision_data(step),
        )  # fmt: skip
        self._ledger = fold(self._ledger, decision)
        self.turns.append(Turn(step, record.segment, draft.findings, plan))
        self._apart = plan.effects or plan.stop

    def _happened(self, record: StepRecord | Event) -> None:
        if isinstance(record, Event) and record.kind == EventKind.SEGMENT_OPENED:
            self._apart, self._segment = False, record.segment
        if isinstance(record, StepRecord):
            self.steps += 1
            self.has_states |= record.states is not None
        self._health_monitor.enter(self._settings(record.step))
        self.findings += self._health_monitor.observe(record)
        if not isinstance(record, StepRecord) or self._draft is not None:
            return
        if self._apart:
            self._health_monitor.forget_pending()
        else:
            self._draft = self._health_monitor.draft(self._ledger)

    def _decided(self, decision: Decision) -> None:
        """What people decided holds here too; what the policy decided is compared."""
        if decision.kind != "recover" or decision.who != WHO:
            if decision.kind != "checkpoint-health":
                self._ledger = fold(self._ledger, decision)
            return
        last = self.turns[-1] if self.turns else None
        if last is not None and self._answers(decision, last):
            self.turns[-1] = replace(last, live=decision)
        else:
            self.turns.append(Turn(decision.step, decision.segment, (), None, decision))

    def _answers(self, decision: Decision, turn: Turn) -> bool:
        """Whether the run decided the same matter there."""
        if turn.would is None or turn.live is not None or turn.segment != decision.segment:
            return False
        return self._apart or turn.would.cause == decision.data.get("cause")

    def _settings(self, step: int) -> Recipe:
        """In force after so many updates."""
        known = self._segments.get(self._segment)
        if known is not None:
            return known
        overrides = self._ledger.overrides_at(step)
        if overrides != self._overridden[0]:
            self._overridden = overrides, with_overrides(self._recipe, overrides)
        return self._overridden[1]


def replay(
    records: Iterable[Record], recipe: Recipe, segments: Mapping[str, Recipe] | None = None
) -> Backtest:
    """Judge and decide a whole journal again; the other arguments are as those of `Backtest`."""
    done = Backtest(recipe, segments or {})
    for record in records:
        done.take(record)
    done.settle()
    return done


def _is_past(record: Record, draft: Draft) -> bool:
    # Steps that were under way, and checkpoints that were being written, come before a decision.
    if isinstance(record, StepRecord):
        return record.segment != draft.record.segment or record.step > draft.situation.step
    if isinstance(record, Decision):
        return record.kind == "recover"
    return isinstance(record, Event) and record.kind not in (
        EventKind.CHECKPOINT,
        EventKind.CHECKPOINT_FAILED,
    )
