import pytest

from longhaul.config.supervise import SuperviseSection
from longhaul.supervise.ranks.progress import Phase, Progress
from longhaul.supervise.ranks.watchdog import (
    Learned,
    ProcessState,
    Rank,
    deadline,
    judge,
    learn,
    who_did_not_arrive,
)

SETTINGS = SuperviseSection()
DAY = 86_400.0


def rank(
    number: int, phase: Phase = "step", step: int = 5, sign: int = 5, at: float = 100.0,
    state: ProcessState = "running",
) -> Rank:  # fmt: skip
    return Rank(number, "host-a", Progress(phase, step, sign, at, at), state)


def taught(*looks: Rank) -> Learned:
    learned = Learned()
    for look in looks:
        learned = learn(learned, [look])
    return learned


def test_one_sign_of_life_is_enough_for_the_group() -> None:
    ranks = [rank(0, at=100.0), rank(1, at=129.0)]
    verdict = judge(158.0, 0.0, ranks, Learned(), SETTINGS)
    assert not verdict.hung
    assert verdict.quiet_s == 29.0
    verdict = judge(159.5, 0.0, ranks, Learned(), SETTINGS)
    assert verdict.hung
    assert "30.5 s in phase step" in verdict.reason


@pytest.mark.parametrize("phase", ["start-up", "compile", "save"])
def test_what_gives_no_sign_before_its_end_may_take_longer(phase: Phase) -> None:
    limit = 20 * SETTINGS.deadline_s
    waits = [rank(0, phase), rank(1, "step")]
    assert not judge(100.0 + limit, 0.0, waits, Learned(), SETTINGS).hung
    assert judge(101.0 + limit, 0.0, waits, Learned(), SETTINGS).hung


def test_an_evaluation_that_gives_no_sign_of_a_batch_is_found_out_long_before_its_end() -> None:
    waits = [rank(0, "evaluation", sign=9), rank(1, "evaluation", sign=9)]
    limit = 4 * SETTINGS.deadline_s
    assert not judge(100.0 + limit, 0.0, waits, Learned(), SETTINGS).hung
    assert judge(101.0 + limit, 0.0, waits, Learned(), SETTINGS).hung
    # Batches that take long earn it more, as steps do.
    slow = taught(rank(0, "evaluation", sign=1, at=0.0), rank(0, "evaluation", sign=2, at=20.0))
    assert deadline("evaluation", slow, SETTINGS) == 200.0


def test_preparing_text_has_no_deadline_and_the_others_wait_for_it() -> None:
    ranks = [rank(0, "prepare"), rank(1, "start-up")]
    assert not judge(30 * DAY, 0.0, ranks, Learned(), SETTINGS).hung


def test_a_rank_that_never_spoke_is_measured_from_its_start() -> None:
    mute = [Rank(0, "host-a", None)]
    assert not judge(1600.0, 1000.0, mute, Learned(), SETTINGS).hung
    assert judge(1601.0, 1000.0, mute, Learned(), SETTINGS).hung


def test_a_stopped_process_is_found_out_soon_whatever_it_was_doing() -> None:
    ranks = [rank(0, "save"), rank(1, "save", state="stopped")]
    verdict = judge(131.0, 0.0, ranks, Learned(), SETTINGS)
    assert verdict.hung
    assert verdict.missing == (1,)


def test_long_steps_earn_a_longer_deadline_and_short_ones_no_shorter_one() -> None:
    slow = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=12.0))
    assert deadline("step", slow, SETTINGS) == 120.0
    quick = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=101, sign=101, at=1.0))
    assert deadline("step", quick, SETTINGS) == SETTINGS.deadline_s
    assert deadline("save", quick, SETTINGS) == 20 * SETTINGS.deadline_s


def test_the_time_of_many_steps_between_two_looks_is_shared_out() -> None:
    learned = taught(rank(0, step=10, sign=1, at=0.0), rank(0, step=30, sign=2, at=100.0))
    assert learned.longest("step") == 5.0


def test_a_long_save_earns_a_longer_deadline() -> None:
    learned = taught(rank(0, "save", sign=1, at=0.0), rank(0, "step", sign=2, at=90.0))
    assert deadline("save", learned, SETTINGS) == 900.0
    assert learned.longest("step") == 0.0, "it is no step"


def test_looking_again_without_a_new_sign_teaches_nothing() -> None:
    once = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=3.0))
    assert learn(once, [rank(0, step=2, sign=2, at=3.0)]) == once


def test_a_slow_spell_long_ago_is_forgotten() -> None:
    looks = [rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=50.0)]
    looks += [rank(0, step=2 + n, sign=2 + n, at=50.0 + n) for n in range(1, 80)]
    assert taught(*looks).longest("step") == 1.0


def test_no_learned_deadline_is_beyond_the_collectives_own_timeout() -> None:
    learned = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=DAY))
    assert deadline("step", learned, SETTINGS) == SETTINGS.deadlines()["collective_s"]


WAITS = "all_reduce (distributed_c10d.py:2962)"


@pytest.mark.parametrize(
    ("ranks", "waiting", "missing", "why"),
    [
        ([rank(0), rank(1, state="stopped")], {0: WAITS, 1: None}, (1,), "stopped by a signal"),
        ([rank(0, state="in the kernel"), rank(1)], {0: "", 1: WAITS}, (0,), "does not return"),
        ([rank(0, step=8), rank(1, step=7), rank(2, step=8)], {}, (1,), "at step 7, the others"),
        ([rank(0), Rank(1, "host-b", None)], {}, (1,), "rank 1 on host-b is at step -1"),
        ([rank(0), rank(1), rank(2)], {0: WAITS, 1: WAITS, 2: ""}, (2,), WAITS),
        ([rank(0), rank(1)], {0: WAITS, 1: None}, (1,), "unable to say"),
        ([rank(0)], {0: ""}, (0,), "alone"),
        ([rank(0), rank(1)], {0: WAITS, 1: WAITS}, (), "nothing tells"),
        ([rank(0), rank(1)], {0: None, 1: None}, (), "nothing tells"),
        ([rank(0), rank(1)], {0: "", 1: ""}, (), "nothing tells"),
    ],
)
def test_who_did_not_arrive_is_told_from_what_there_is(ranks, waiting, missing, why) -> None:
    named, reason = who_did_not_arrive(ranks, waiting)
    assert named == missing
    assert why in reason
