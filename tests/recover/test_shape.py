"""What a drafted plan becomes once the cause is known."""

import json

import pytest

from longhaul.config.recover import RecoverSection
from longhaul.core.records import Event, from_line, to_line
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.draft import asks_for_cause, shaped, verdict_in
from longhaul.recover.learning_rate import in_force
from longhaul.recover.policy import decide
from longhaul.recover.remedies import Remedy

LIMITS = RecoverSection()
DATA = Verdict("data", "data", "on other batches it is gone")
RATE = Verdict("hyper-parameter", "rate", "it goes away with half", {"factor": 0.5})
EIGHTH = Verdict("hyper-parameter", "rate", "it goes away with an eighth", {"factor": 0.125})
KERNEL = Verdict("parallel or kernel bug", "plain", "eager float32 computes it differently")
FOR_GOOD = Verdict("data", "rest", "the data has changed for good", {"lasting": 1.0})
NOTHING = Verdict("undetermined", "", "nothing takes it away")


def drafted(make, kind, **situation):
    """The ladder's own plan: a spike skips, a divergence lowers the rate."""
    at = make.situation(200, **situation)
    plan = decide(at, [make.finding(kind, 200, 190)])
    assert plan is not None
    return plan, at


@pytest.mark.parametrize("kind", ["loss-spike", "divergence"])
def test_bad_data_is_passed_over_and_the_rate_stays(make, kind) -> None:
    plan, at = drafted(make, kind)
    done = shaped(plan, DATA, at)
    assert done.actions == ("rollback", "skip")
    assert done.rollback == plan.rollback
    assert done.settings == {}
    begin, end = done.skip
    assert begin <= plan.first_draw < end
    assert done.price["steps_lost_later"] == 0
    assert done.reason.startswith(f"{plan.headline}, because of the data: back to step")


@pytest.mark.parametrize("kind", ["loss-spike", "divergence"])
def test_a_rate_that_is_too_high_is_lowered_and_no_data_is_passed_over(make, kind) -> None:
    plan, at = drafted(make, kind)
    done = shaped(plan, RATE, at)
    assert done.actions == ("rollback", "lower-lr")
    assert done.rollback == plan.rollback
    assert done.skip is None
    assert (done.old, done.settings) == ({"optim.lr": 1e-3}, {"optim.lr": 5e-4})
    assert "because of the learning rate" in done.reason


def test_where_half_of_the_rate_does_not_help_it_is_lowered_to_what_does(make) -> None:
    plan, at = drafted(make, "divergence")
    assert shaped(plan, EIGHTH, at).settings == {"optim.lr": 1.25e-4}


def test_a_rate_that_replays_found_is_gone_to_at_once_however_low(make) -> None:
    """Ladders halve down to a floor; from what replays have shown they may go on halving."""
    found = Verdict("hyper-parameter", "rate", "", {"factor": 1 / 128, "too_high": 1 / 32})
    plan, at = drafted(make, "divergence", recipe=make.recipe(lr=1.0))
    done = shaped(plan, found, at)
    assert done.settings == {"optim.lr": 1 / 128}
    rate = in_force(at.settings, plan.first_step)
    assert done.failed == (rate / 32, rate), "what failed, in the run and in replays"
    ledger = make.after(LedgerState(), done, 200)
    again, _ = drafted(make, "divergence", ledger=ledger, recipe=make.recipe(lr=1.0))
    assert again.settings == {"optim.lr": 1 / 256}
    back = [json.loads(json.dumps(recovery.failed)) for recovery in ledger.recoveries]
    assert back == [list(done.failed)]


@pytest.mark.parametrize("kind", ["loss-spike", "divergence"])
def test_data_that_has_changed_for_good_is_gone_on_with(make, kind) -> None:
    plan, at = drafted(make, kind)
    done = shaped(plan, FOR_GOOD, at)
    assert done.actions == ("accept",)
    assert (done.rollback, done.skip, done.settings, done.stop) == (None, None, {}, False)
    assert FOR_GOOD.sentence in done.reason
    assert "training goes on" in done.reason
    ledger = LedgerState()
    for _ in range(LIMITS.max_recoveries + 1):
        ledger = make.after(ledger, done, 200)
    again, _ = drafted(make, kind, ledger=ledger)
    assert not again.stop, "what costs nothing uses up no budget"


def test_who_asks_for_a_stop_gets_one_where_the_data_has_changed_for_good(make) -> None:
    plan, at = drafted(make, "loss-spike")
    done = shaped(plan, FOR_GOOD, make.under(at, RecoverSection(stop_for_surroundings=True)))
    assert done.stop
    assert done.actions == ("stop",)
    assert "recover.stop_for_surroundings asks for it" in done.reason


@pytest.mark.parametrize("cause", ["parallel or kernel bug", "software", "machine"])
def test_who_computes_wrong_numbers_does_not_go_on(make, cause) -> None:
    plan, at = drafted(make, "divergence")
    fault = Verdict(cause, "plain", KERNEL.sentence)
    done = shaped(plan, fault, at)
    assert done.stop
    assert done.actions == ("rollback", "stop")
    assert done.rollback == plan.rollback, "whoever mends it goes on from before the harm"
    assert (done.skip, done.settings, done.reset) == (None, {}, ())
    for words in (cause, KERNEL.sentence, "every further step would be computed as wrongly"):
        assert words in done.reason


def test_what_stays_undetermined_is_left_to_the_ladder(make) -> None:
    plan, at = drafted(make, "loss-spike")
    done = shaped(plan, NOTHING, at)
    own, data = plan.decision_data(200), done.decision_data(200)
    assert data.pop("verdict") == {
        "cause": "undetermined", "rung": "", "sentence": "nothing takes it away",
    }  # fmt: skip
    assert own.pop("verdict") is None
    assert data == own


def test_a_cause_whose_cure_is_used_up_is_left_to_the_ladder(make) -> None:
    """Without a state to go back to nothing is passed over; nor data beyond its share; and below
    the floor no rate is lowered.
    """
    plan, at = drafted(make, "loss-spike", good=())
    assert plan.actions == ("lower-lr",)
    assert shaped(plan, DATA, at).actions == plan.actions
    lowered = LedgerState()
    for _ in range(5):
        plan, at = drafted(make, "divergence", ledger=lowered)
        lowered = make.after(lowered, plan, 200)
    plan, at = drafted(make, "loss-spike", ledger=lowered)
    assert at.settings.optim.lr == pytest.approx(5e-5), "the floor"
    assert shaped(plan, RATE, at).actions == plan.actions == ("rollback", "skip")
    none = RecoverSection(max_skipped_share=0.0)
    assert shaped(plan, DATA, make.under(at, none)).actions == plan.actions


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("loss-spike", True), ("divergence", True), ("gradient-spike", True), ("growth", False),
     ("plateau", False)],
)  # fmt: skip
def test_the_cause_is_asked_for_before_what_costs_and_can_be_replayed(make, kind, asked) -> None:
    plan, _ = drafted(make, kind)
    assert asks_for_cause(plan, LIMITS) is asked
    assert not asks_for_cause(plan, RecoverSection(diagnose=False))


def test_nobody_asks_for_the_cause_where_nothing_may_be_done(make) -> None:
    at = make.situation(200)
    for limits in (RecoverSection(mode="report"), RecoverSection(max_recoveries=0)):
        plan = decide(make.under(at, limits), [make.finding("divergence", 200, 190)])
        assert plan is not None
        assert not asks_for_cause(plan, limits)


def test_a_verdict_comes_back_from_the_journal() -> None:
    evidence = {"factor": 0.5, "apart": float("inf")}
    told = {"cause": RATE.cause, "rung": RATE.rung, "reason": RATE.sentence, "evidence": evidence}
    event = Event(kind="cause", attempt=1, time=0.0, data=told)
    read = verdict_in(from_line(to_line(event)).data)
    assert read == Verdict(RATE.cause, RATE.rung, RATE.sentence, evidence)
    assert verdict_in({"cause": "the moon"}) is None


@pytest.mark.parametrize("path", ["model.width", "checkpoint.remote", "optim.speed"])
def test_a_remedy_that_no_live_run_could_carry_out_is_not_built(path):
    with pytest.raises(ValueError, match=f"{path}: no remedy can change it in a live run"):
        Remedy(("lower-lr",), settings={"optim.lr": 1e-4, path: 2})
