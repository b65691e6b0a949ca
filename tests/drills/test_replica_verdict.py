import math
from itertools import islice

from drills.replica_verdict import (
    Course,
    Fate,
    Kill,
    apart,
    complaints,
    fate_of,
    strokes,
)
from longhaul.core.records import Event, Record, StepRecord
from longhaul.supervise.ranks.progress import Progress

WALL = 1000.0
"""Unix time minus monotonic time."""


def step(number: int, loss: float = 2.0, draw: int | None = None) -> StepRecord:
    begin = number if draw is None else draw
    return StepRecord(
        attempt=1, segment="1", step=number, draw=begin, next_draw=begin + 1, time=WALL + number,
        loss=loss, gradient_norm=1.0, learning_rate=1e-3, sequences=8, sequence_length=32,
    )  # fmt: skip


def event(kind: str, at: float, **data: object) -> Event:
    return Event(kind=kind, attempt=1, step=0, time=WALL + at, data=data)


def kill(replica: int, at: float, made: int = 10) -> Kill:
    return Kill(replica, at, WALL + at, made)


def says(number: int, at: float) -> Progress:
    return Progress("step", number, 1, at, WALL + at)


def course(*points: tuple[float, int]) -> Course:
    made = Course()
    for at, number in points:
        made.see([says(number, at)])
    return made


KILLED = kill(1, 10.5)
FATE = Fate(KILLED, went_on_s=0.5, longest_s=2.1, back_s=6.0, healed_s=5.0, peer=2, restarted=())
DIED = event("replica-lost", 10.6, rank=1, cause="killed")
BACK = event("replica-back", 15.6, rank=1, peer=2, healed=WALL + 15.5)
MADE: tuple[StepRecord, ...] = tuple(step(number) for number in range(1, 31))
LEFT_ALONE = {record.step: record for record in MADE}


def found(
    records: tuple[Record, ...] = (*MADE, DIED, BACK),
    fates: tuple[Fate, ...] = (FATE,),
    code: int = 16,
    computed_in: str = "float32",
) -> list[str]:
    return list(complaints(code, fates, records, LEFT_ALONE, computed_in))


def other(**changes: object) -> Fate:
    fields = {name: getattr(FATE, name) for name in FATE.__slots__}
    return Fate(**(fields | changes))


def test_a_seed_draws_the_same_victims_and_pauses_and_all_replicas_are_among_them() -> None:
    first = list(islice(strokes(7, 60.0, 3), 50))
    assert first == list(islice(strokes(7, 60.0, 3), 50))
    assert first != list(islice(strokes(8, 60.0, 3), 50))
    assert all(30.0 <= pause_s <= 90.0 for pause_s, _ in first)
    assert {replica for _, replica in first} == {0, 1, 2}


def test_a_course_is_that_of_whoever_is_furthest() -> None:
    made = Course()
    made.see([says(3, 1.0), says(4, 1.2)])
    made.see([says(3, 1.0), says(4, 1.2)])
    made.see([says(0, 1.4), says(5, 1.5)])  # one of them has been started again
    assert made.step == 5
    assert made.came_to(4) == 1.2
    assert made.came_to(6) == math.inf


def test_the_longest_time_without_a_step_is_looked_for_where_it_is_asked_for() -> None:
    made = course((0.0, 1), (5.0, 2), (5.5, 3), (6.0, 4), (8.0, 5), (8.1, 6))
    assert made.longest(5.2, 5.9) == 0.5
    assert made.longest(5.2, 7.0) == 2.0
    assert made.longest(0.0, 9.0) == 5.0
    assert course((0.0, 1)).longest(0.0, 9.0) == 0.0


def test_the_fate_of_a_companion_is_told_by_its_supervisor() -> None:
    made = course((10.4, 10), (10.6, 11), (12.7, 12), (13.0, 13), (16.5, 40))
    earlier = event("replica-back", 8.0, rank=1, peer=0, healed=WALL + 8.0)
    of_another = event("replica-back", 11.0, rank=2, peer=0, healed=WALL + 11.0)
    fate = fate_of(KILLED, made, 16.5, (), (earlier, of_another, BACK))
    # Step 11 may have been under way when it was killed; step 12 was begun without it.
    assert round(fate.went_on_s, 6) == 2.2
    assert round(fate.longest_s, 6) == 3.5
    assert (fate.healed_s, fate.peer, fate.back_s) == (5.0, 2, 6.0)
    assert "healed by replica 2 after 5.0 s" in str(fate)


def test_the_fate_of_a_pilot_is_told_by_itself() -> None:
    fate = fate_of(kill(0, 10.5), course((10.4, 10)), 17.0, (), (event("healed", 15.0, peer=1),))
    assert (fate.healed_s, fate.peer) == (4.5, 1)
    assert fate.went_on_s == math.inf


def test_who_was_not_healed_is_said_to_be() -> None:
    fate = fate_of(KILLED, course((10.4, 10)), 17.0, (2,), (event("healed", 15.0, peer=1),))
    assert (fate.healed_s, fate.peer, fate.restarted) == (None, None, (2,))
    assert "never healed" in str(fate)


def test_a_run_whose_replicas_die_and_come_back_has_no_complaints() -> None:
    assert found() == []


def test_a_replica_that_is_back_before_it_is_missed_has_kept_nobody_waiting() -> None:
    assert found(fates=(other(went_on_s=2.1, back_s=2.0),)) == []


def test_each_broken_promise_is_told() -> None:
    twice = (*MADE, MADE[4], DIED, BACK)
    missing = tuple(record for record in MADE if record.step != 7)
    elsewhere = (*MADE[:-1], step(30, draw=99))
    for complained, word in (
        (found(code=0), "exit code 0"),
        (found(fates=(), records=MADE), "nothing was killed"),
        (found(fates=(other(went_on_s=6.5),)), "waited until it was back"),
        (found(fates=(other(went_on_s=math.inf),)), "waited until it was back"),
        (found(fates=(other(peer=None),)), "no peer healed it"),
        (found(fates=(other(restarted=(0,)),)), "replica 0 was started again too"),
        (found(records=MADE), "deaths in the journal"),
        (found(records=(*MADE, DIED, DIED)), "deaths in the journal"),
        (found(records=twice), "1 steps are missing or were made twice, step 5"),
        (found(records=(*missing, DIED)), "1 steps are missing or were made twice, step 7"),
        (found(records=(*elsewhere, DIED)), "1 steps read other data"),
    ):
        assert len(complained) == 1
        assert word in complained[0]


def test_a_step_that_the_run_left_alone_has_not_made_is_told() -> None:
    assert any("other data" in said for said in found(records=(*MADE, step(31), DIED)))


def test_a_loss_that_is_another_one_is_told_and_rounding_is_not() -> None:
    def with_loss(loss: float) -> tuple[Record, ...]:
        return (*MADE[:9], step(10, loss=loss), *MADE[10:], DIED)

    assert found(records=with_loss(2.0 * (1 + 5e-6))) == []
    assert "first 100 steps" in found(records=with_loss(2.0 * (1 + 5e-5)))[0]
    assert found(records=with_loss(2.0 * (1 + 5e-5)), computed_in="bf16") == []
    assert "first 100 steps" in found(records=with_loss(math.nan))[0]


def test_late_losses_are_compared_by_their_means() -> None:
    alone = {number: step(number) for number in range(1, 1001)}
    noisy = [step(n, loss=2.0 + (0.2 if n % 2 else -0.2) * (n > 500)) for n in alone]
    far = apart(noisy, alone)
    assert (far.soon, round(far.ever, 6), round(far.means, 6)) == (0.0, 0.1, 0.0)
    worse = apart([step(n, loss=2.0 + 0.1 * (n > 500)) for n in alone], alone)
    assert round(worse.means, 6) == 0.05
    assert apart([step(501, loss=math.inf)], alone).means == math.inf
