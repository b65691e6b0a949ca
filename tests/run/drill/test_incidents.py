from dataclasses import replace
from typing import Any

import pytest

from longhaul.core.records import Decision, Event, Record, StepRecord
from longhaul.run.drill.incidents import incidents, must_be_noticed
from longhaul.run.drill.laid import Done


def step(number: int, time: float, attempt: int = 1, **more: Any) -> StepRecord:
    return StepRecord(
        attempt=attempt, segment="1.00", step=number, draw=number, next_draw=number + 1,
        time=time, loss=2.0, gradient_norm=1.0, learning_rate=1e-3, sequences=1,
        sequence_length=8, **more,
    )  # fmt: skip


def event(kind: str, time: float, /, attempt: int = 1, **data: Any) -> Event:
    return Event(kind=kind, attempt=attempt, time=time, data=data)


def done(fault: str, time: float, step: int = 5, rank: int = 1, attempt: int = 1) -> Done:
    return Done(0, fault, rank, "", attempt, step, time)


FOUR_STEPS: list[Record] = [step(n, float(n)) for n in range(1, 5)]


def test_a_killed_rank_is_told_of_by_the_supervisor_and_costs_what_was_not_saved() -> None:
    records = [
        *FOUR_STEPS,
        event("attempt-ended", 4.7, cause="killed", reason="rank 1: killed (SIGKILL)"),
        event("attempt-started", 6.0, attempt=2),
        *(step(n, 4.0 + n, attempt=2) for n in range(3, 7)),
    ]
    (found,) = incidents([done("kill@rank1:step5", 4.5)], records)
    assert found.detect_s == pytest.approx(0.2)
    assert found.recover_s == pytest.approx(2.5)  # step 3 again, at 7.0
    assert found.caught_up_s == pytest.approx(4.5)  # step 5, at 9.0
    assert (found.steps_lost, found.by) == (2, "supervisor")
    assert "killed" in found.story


def test_a_preempted_run_loses_nothing_and_is_started_by_the_scheduler() -> None:
    records = [
        *FOUR_STEPS, step(5, 5.0), event("attempt-ended", 5.5, reason="preempted"),
        event("attempt-started", 8.0, attempt=2), step(6, 9.0, attempt=2),
    ]  # fmt: skip
    (found,) = incidents([done("preempt@rank0:step5", 4.5)], records)
    assert (found.by, found.steps_lost, found.story) == ("scheduler", 0, "preempted")
    assert found.recover_s == pytest.approx(4.5)


def test_a_supervisor_that_died_tells_of_nothing() -> None:
    records = [*FOUR_STEPS, event("attempt-started", 8.0, attempt=2), step(4, 9.0, attempt=2)]
    (found,) = incidents([done("supervisor-kill@rank0:step5", 4.5)], records)
    assert found.detect_s == pytest.approx(3.5)
    assert (found.by, found.steps_lost) == ("scheduler", 1)


def test_a_masked_step_is_left_out() -> None:
    records = [*FOUR_STEPS, step(5, 5.0, masked=True), step(6, 6.0)]
    (found,) = incidents([done("nan@rank1:step5", 4.5)], records)
    assert (found.detect_s, found.recover_s) == (0.5, 1.5)
    assert (found.by, found.steps_lost) == ("pilot", 1)


def test_a_rollback_costs_the_steps_it_undoes() -> None:
    back = Decision(
        kind="recover", attempt=1, step=5, time=5.2, who="pilot", reason="the loss is no number",
        data={"rollback": {"from": 5, "to": 2}},
    )  # fmt: skip
    records = [*FOUR_STEPS, step(5, 5.0), back, step(3, 6.0)]
    (found,) = incidents([done("bitflip-weight@rank1:step5", 4.5)], records)
    assert (found.steps_lost, found.story) == (3, "the loss is no number")
    assert found.recover_s == pytest.approx(1.5)


def test_a_full_disk_is_over_with_the_next_checkpoint() -> None:
    records = [
        *FOUR_STEPS, event("checkpoint-failed", 5.0, message="no space"), step(5, 6.0),
        event("checkpoint", 7.0, health="verified"),
    ]  # fmt: skip
    (found,) = incidents([done("enospc@rank0:step5", 4.5)], records)
    assert (found.detect_s, found.recover_s, found.story) == (0.5, 2.5, "no space")
    assert found.steps_lost == 0


def test_a_wrong_byte_is_found_out_when_it_is_read() -> None:
    poisoned = Decision(
        kind="checkpoint-health", attempt=2, step=0, time=7.0, who="pilot", reason="SHA-256 …",
        data={"checkpoint": 3, "health": "poisoned"},
    )  # fmt: skip
    flipped = done("bitflip-file@rank0:step5", 4.5)
    (found,) = incidents([flipped], [*FOUR_STEPS, poisoned, step(2, 8.0, attempt=2)])
    assert (found.detect_s, found.story) == (2.5, "SHA-256 …")
    (unread,) = incidents([flipped], FOUR_STEPS)
    assert (unread.detect_s, unread.by, unread.story) == (None, "", "it has not shown")


def test_a_slow_rank_is_only_noticed_by_a_verdict_on_it() -> None:
    slow = replace(done("slow:1.5@rank1:step5-50", 4.5), rank=1)
    other = event("machine-verdict", 6.0, ranks=[0])
    named = event("machine-verdict", 7.0, ranks=[1], reason="21 % slower")
    named = replace(named, data={**named.data, "kind": "straggler"})
    (found,) = incidents([slow], [*FOUR_STEPS, other, named, step(5, 8.0)])
    assert (found.detect_s, found.named) == (2.5, (1,))
    assert found.story == "21 % slower; reported, and trained on with it"
    ended = event("attempt-ended", 9.0, cause="killed", reason="rank 0: killed")
    assert incidents([slow], [*FOUR_STEPS, ended])[0].detect_s is None


def test_what_must_be_noticed_and_was_not_is_told() -> None:
    (found,) = incidents([done("kill@rank1:step5", 4.5)], FOUR_STEPS)
    assert (found.detect_s, found.story) == (None, "the journal does not report it")


def test_a_corrupt_rank_costs_what_was_made_since_the_last_sound_state() -> None:
    verdict = event("machine-verdict", 5.0, ranks=[], among=[0, 1], reason="they differ")
    verdict = replace(verdict, data=verdict.data | {"kind": "corrupt"})
    ended = event("attempt-ended", 5.1, cause="silent-corruption", reason="rank 0: …")
    started = replace(event("attempt-started", 8.0, attempt=2), step=2)
    records = [*FOUR_STEPS, verdict, ended, started, step(3, 9.0, attempt=2)]
    (found,) = incidents([done("bitflip-weight@rank1:step5", 4.5)], records)
    assert (found.detect_s, found.recover_s, found.steps_lost) == (0.5, 4.5, 2)
    assert (found.by, found.named, found.undone) == ("pilot", (0, 1), True)
    assert found.story == "they differ; nobody could be named; went on from step 2"


def test_the_end_of_a_finished_run_tells_of_no_fault() -> None:
    ended = event("attempt-ended", 9.0, reason="finished")
    flipped = done("bitflip-weight@rank1:step4", 3.5)
    assert incidents([flipped], [*FOUR_STEPS, ended])[0].detect_s is None


def watch(replicas: int, stragglers: bool = True) -> Event:
    return event("machine-watch", 0.5, stragglers=stragglers, replicas=replicas)


def look(what: str, at: int) -> Event:
    return replace(event("compared", at + 0.1, what=what), step=at)


def test_a_flipped_bit_must_be_noticed_if_a_look_fell_into_its_time() -> None:
    for kind, what, other in (
        ("bitflip-weight", "weights", "slot"), ("bitflip-grad", "slot", "weights"),
    ):  # fmt: skip
        fault = done(f"{kind}@rank1:step5", 4.5)
        seen = [watch(2), *FOUR_STEPS, step(5, 5.0), look(what, 5), look(other, 5)]
        for records, must in ((seen, True), (seen[:-2], False), ([*seen[:-2], seen[-1]], False)):
            (found,) = incidents([fault], records)
            assert must_be_noticed(found, records) is must
            assert ("no look" in found.story) is not must
    late = [watch(2), *FOUR_STEPS, step(5, 5.0), step(6, 6.0), look("slot", 6), look("weights", 6)]
    (gradient,) = incidents([done("bitflip-grad@rank1:step5", 4.5)], late)
    assert not must_be_noticed(gradient, late), "it is over by then"
    (weight,) = incidents([done("bitflip-weight@rank1:step5", 4.5)], late)
    assert must_be_noticed(weight, late)
    assert not must_be_noticed(weight, [watch(1), *late[1:]]), "nobody else holds it"


def test_a_slow_rank_must_be_named_within_100_steps_where_it_has_peers() -> None:
    slow = done("slow:1.2@rank1:step5-200", 4.5)
    steps: list[Record] = [step(n, float(n)) for n in range(5, 120)]
    (found,) = incidents([slow], steps)
    assert must_be_noticed(found, [watch(2), *steps])
    assert not must_be_noticed(found, [watch(2), *steps[:80]])
    assert not must_be_noticed(found, [watch(2, stragglers=False), *steps])


def test_the_nodes_that_went_on_are_told() -> None:
    ended = event("attempt-ended", 4.7, cause="node-gone", reason="rank 1: node-gone", rank=1)
    began = event("attempt-began", 4.8, attempt=2, nodes=[{"name": "a"}, {"name": "c"}])
    started = replace(event("attempt-started", 6.0, attempt=2), step=2)
    (found,) = incidents([done("node-gone@nodeb:step5", 4.5)], [*FOUR_STEPS, ended, began, started])
    assert found.story == "rank 1: node-gone; went on from step 2; on nodes a, c"
    assert (found.named, found.undone) == ((1,), False)
