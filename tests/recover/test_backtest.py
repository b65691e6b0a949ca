"""A journal that is judged again: as it was by the same limits, and otherwise by others."""

import math
import random
from dataclasses import astuple, replace

import pytest

from longhaul.config.recover import RecoverSection
from longhaul.core.records import Decision, Event, Finding, Safe, StepRecord, from_line, to_line
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.recover.backtest import replay
from longhaul.recover.plan import WHO, sizes_of
from longhaul.recover.policy import LOOK_EVERY_STEPS, decide
from longhaul.recover.probation import Course, good_states

LIMITS = RecoverSection()
EVERY = 25
"""Steps between snapshots."""


def loss_at(step, rate, noise):
    """A run that diverges from step 201 on unless the learning rate has been lowered."""
    healthy = 3 + 3 * math.exp(-step / 150) + noise.gauss(0, 0.01)
    return healthy + (0.15 * (step - 200) if step > 200 and rate > 6e-4 else 0.0)


class Live:
    """A live run in small: the pilot's loop with a made-up loss."""

    def __init__(self, make, steps, restart_at):
        self.make, self.recipe = make, make.recipe(steps=1000)
        self.noise = random.Random(7)
        self.lines, self.plans = [], []
        self.ledger, self.course = LedgerState(), Course()
        self.diagnosis = Diagnosis(self.recipe.diagnose, 1000)
        self.safe = {0: Safe(0, 0, "memory")}
        self.attempt, self.minor, self.step, self.draw, self.time = 1, 0, 0, 0, 1000.0
        while self.step < steps:
            if restart_at is not None and self.step >= restart_at:
                restart_at = None
                self.attempt += 1
                self.turn()
            self.train()

    def keep(self, record):
        self.lines.append(to_line(record))
        self.course = self.course.after(record)

    def turn(self):
        self.minor += 1
        self.keep(Event(kind="segment-opened", step=self.step, **self.at()))

    def at(self):
        self.time += 1.0
        return {"attempt": self.attempt, "segment": f"1.{self.minor:02d}", "time": self.time}

    def train(self):
        self.step += 1
        situation = self.make.situation(self.step, self.ledger, self.recipe)
        rate = situation.settings.optim.lr
        draw = next(
            (end for begin, end in self.ledger.skips if begin <= self.draw < end), self.draw
        )
        self.draw = draw + self.make.blocks
        record = self.make.step(
            self.step, loss=loss_at(self.step, rate, self.noise), learning_rate=rate, draw=draw,
            next_draw=self.draw, states=tuple(map(astuple, self.safe.values())), **self.at(),
        )  # fmt: skip
        self.keep(record)
        findings = self.diagnosis.observe(record)
        for finding in findings:
            self.keep(finding)
        probation = sizes_of(LIMITS, 1000).probation
        situation = self.make.situation(
            self.step, self.ledger, self.recipe,
            good=good_states(self.safe.values(), self.course, probation),
            quiet_since=self.course.quiet_since, draw=self.draw,
            states=tuple(self.safe.values()), troubles=self.course.troubles,
        )  # fmt: skip
        plan = None
        if findings or self.step % LOOK_EVERY_STEPS == 0:
            plan = decide(situation, findings)
        if plan is not None:
            self.carry_out(plan)
        if self.step % EVERY == 0:
            self.safe[self.step] = Safe(self.step, self.draw, "memory")
            self.safe = {step: self.safe[step] for step in sorted(self.safe)[-8:]}

    def carry_out(self, plan):
        self.plans.append(plan)
        decision = Decision(
            kind="recover", step=self.step, who=WHO, reason=plan.reason,
            data=plan.decision_data(self.step), **self.at(),
        )  # fmt: skip
        self.keep(decision)
        self.ledger = fold(self.ledger, decision)
        if plan.rollback is not None:
            self.step, self.draw = plan.rollback.step, plan.rollback.draw
            self.safe = {step: safe for step, safe in self.safe.items() if step <= self.step}
        if plan.effects:
            self.turn()


@pytest.fixture(scope="module")
def live(make):
    return Live(make, steps=420, restart_at=330)


def judged(live, **limits):
    records = (from_line(line) for line in live.lines)
    return replay(records, live.recipe.model_copy(update={"recover": RecoverSection(**limits)}))


def test_the_same_limits_find_and_decide_what_was_found_and_decided_live(live):
    done = judged(live)
    told = [record for record in map(from_line, live.lines) if isinstance(record, Finding)]
    assert told
    assert done.live_findings == tuple(told)
    assert done.findings == done.live_findings
    assert [turn.would for turn in done.turns] == live.plans
    assert all(turn.live is not None for turn in done.turns)
    assert live.plans[0].rollback is not None
    assert any(plan.actions == ("raise-lr",) for plan in live.plans)
    assert done.steps_saved == 0


def test_another_policy_is_compared_up_to_where_it_parts(live):
    done = judged(live, mode="report")
    assert done.turns[0].would.actions == ("report",)
    assert done.turns[0].live is not None
    back = live.plans[0]
    assert done.turns[0].steps_lost_live == back.price["steps_lost"] > 0
    assert done.steps_saved > 0


def test_other_margins_lose_other_steps(live):
    done = judged(live, margin_steps=90)
    assert done.turns[0].steps_lost > done.turns[0].steps_lost_live
    assert done.steps_saved == sum(t.steps_lost_live - t.steps_lost for t in done.turns) < 0
    assert done.findings == done.live_findings


def test_detectors_that_see_nothing_would_have_done_nothing(live):
    blind = live.recipe.diagnose.model_copy(deep=True)
    calm = {"margin": 1e6}
    blind = blind.model_copy(
        update={
            "divergence": blind.divergence.model_copy(update=calm),
            "loss_spike": blind.loss_spike.model_copy(update={"least": 1e6}),
        }
    )
    records = (from_line(line) for line in live.lines)
    done = replay(records, live.recipe.model_copy(update={"diagnose": blind}))
    assert not [
        finding for finding in done.findings if finding.kind in ("divergence", "loss-spike")
    ]
    assert all(turn.would is None for turn in done.turns)
    assert done.turns[0].live is not None


def test_what_people_decided_holds_in_the_replay_too(make):
    records = [make.step(step) for step in range(1, 40)]
    by_anna = Decision(
        kind="set", attempt=1, step=39, time=2000.0, who="anna", reason="",
        data={"path": "optim.lr", "value": 1e-4, "old": 1e-3},
    )  # fmt: skip
    done = replay([*records, by_anna], make.recipe())
    assert done.steps == 39
    assert not done.turns


@pytest.mark.parametrize("lag", [0, 2])
def test_a_verdict_that_the_run_came_to_shapes_the_plan_again(live, lag):
    """It follows in the journal what led to it, and the steps that were under way by then."""
    records = list(map(from_line, live.lines))
    at = next(n for n, r in enumerate(records) if isinstance(r, Decision))
    drafted, steps = live.plans[0], [n for n in range(at) if isinstance(records[n], StepRecord)]
    found = steps[-1]
    step_boundary = records[found].step + lag
    late = [replace(records[found], step=records[found].step + n) for n in range(1, lag + 1)]
    records[found] = replace(records[found], lag_steps=lag)
    told = Event(
        kind="cause", attempt=1, step=step_boundary, time=0.0,
        data={"cause": "hyper-parameter", "rung": "rate", "reason": "half of it is enough"},
    )  # fmt: skip
    done = replay([*records[:at], *late, told], live.recipe)
    (turn,) = done.turns
    assert drafted.actions == ("rollback", "skip")
    assert turn.would.actions == ("rollback", "lower-lr")
    assert turn.would.verdict.sentence == "half of it is enough"
    blunt = live.recipe.model_copy(update={"recover": RecoverSection(diagnose=False)})
    unlooked = replay([*records[:at], *late, told], blunt)
    assert unlooked.turns[0].would.actions == drafted.actions
    silent = replay([*records[:at], *late], live.recipe)
    assert silent.turns[0].would.actions == drafted.actions, "nobody had looked, and it ends"
    assert (silent.turns[0].would == drafted) is (lag == 0), "steps under way are paid for too"


def test_a_journal_that_does_not_tell_its_states_says_so(live, make):
    assert judged(live).has_states
    older = replay([replace(make.step(step), states=None) for step in range(1, 9)], make.recipe())
    assert not older.has_states
