from dataclasses import replace

from longhaul.board.incidents import incidents
from longhaul.core.records import Decision, Event, Finding


def finding(kind="loss-spike", step=100, **values):
    return Finding(
        **{
            "kind": kind, "severity": "alarm", "attempt": 1, "segment": "1.00", "step": step,
            "first_step": step - 5, "first_draw": 0, "time": 1e6 + step, "sentence": f"{kind} seen",
        } | values
    )  # fmt: skip


def recover(step=100, **data):
    return Decision(
        kind="recover", attempt=1, segment="1.00", step=step, time=1e6 + step, who="policy",
        reason="go back", data={"cause": "loss-spike", "actions": ["rollback"], **data},
    )  # fmt: skip


def started(attempt, **data):
    return Event(
        kind="attempt-started", attempt=attempt, time=2e6 + attempt, data=data,
        seconds={"idle": 60.0},
    )  # fmt: skip


def test_a_recovery_takes_in_the_findings_that_led_to_it():
    found = incidents(
        [
            finding(evidence={"z": 9.0}), finding("gradient-spike", severity="warning"),
            finding("plateau", severity="notice"),
            recover(
                rollback={"from": 100, "to": 60, "draw": 0}, skip={"begin": 60, "end": 90},
                set={"optim.lr": 1e-4}, old={"optim.lr": 2e-4}, reset=["optimizer"],
                rewarm_steps=20, price={"steps_lost": 40.0},
            ),
        ]
    )  # fmt: skip
    repaired = next(i for i in found if i.decision)
    assert (repaired.kind, repaired.first_step, repaired.also) == (
        "loss-spike", 95, ("gradient-spike",),
    )  # fmt: skip
    assert repaired.evidence == {"z": 9.0}
    assert repaired.price == {"steps_lost": 40.0}
    assert repaired.actions == (
        "rolled back from step 100 to 60", "skipped blocks 60 to 90 of the data",
        "optim.lr 0.0002 → 0.0001", "reset optimizer, fresh warm-up over 20 steps",
    )  # fmt: skip
    assert [i.kind for i in found if not i.decision] == ["plateau"]


def test_a_recovery_tells_the_cause_that_replays_brought_to_light():
    looked = Event(
        kind="cause", attempt=1, time=1e6 + 100,
        data={"cause": "data", "rungs": {"as trained": 5.5, "other data 1": 2.5}},
    )  # fmt: skip
    verdict = {"cause": "data", "rung": "data", "sentence": "on other batches it is gone"}
    records = [finding(), looked, recover(verdict=verdict), finding(step=200), recover(200)]
    first, second = incidents(records)
    assert first.cause == "data: on other batches it is gone"
    assert first.rungs == {"as trained": 5.5, "other data 1": 2.5}
    assert (second.cause, second.rungs) == ("", {}), "nobody had looked"


def test_the_same_finding_again_and_again_is_one_row():
    (only,) = incidents([finding(step=step) for step in (100, 110, 120)])
    assert (only.times, only.step, only.actions) == (3, 100, ())


def test_a_rollback_by_a_person_needs_no_finding():
    data = {"cause": "asked", "rollback": {"from": 9, "to": 5, "draw": 0}}
    (only,) = incidents([replace(recover(**data), who="anna")])
    assert only.sentence == "anna asked for it: go back"
    assert incidents([recover(cause="probation")])[0].sentence == "go back"
    assert only.actions == ("rolled back from step 9 to 5",)


def test_a_death_is_seen_at_the_next_start_and_a_word_of_parting_is_none():
    died = incidents([started(1), started(2, steps_made=50, resumed_from=40)])
    assert [(i.kind, i.step, i.price) for i in died] == [
        ("process died", 50, {"steps_lost": 10.0, "idle_seconds": 60.0})
    ]
    parted = Event(kind="attempt-ended", attempt=1, time=2e6, data={"reason": "stopped"})
    assert incidents([started(1), parted, started(2, steps_made=50, resumed_from=50)]) == ()


def test_a_failure_that_the_supervisor_saw_is_an_incident_with_its_reason():
    data = {"reason": "rank 1: killed (SIGKILL)", "cause": "killed", "remedy": "restart"}
    failed = Event(kind="attempt-ended", attempt=1, time=2e6, data=data)
    (only,) = incidents([started(1), failed, started(2, steps_made=50, resumed_from=40)])
    assert (only.kind, only.subject, only.price["steps_lost"]) == ("attempt failed", "killed", 10.0)
    assert only.sentence == "Attempt 1 failed at step 50: rank 1: killed (SIGKILL)"
    assert only.actions == ("restarted from checkpoint 40 as attempt 2",)
