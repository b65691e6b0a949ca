import pytest

from longhaul.config.recover import SuperviseSection
from longhaul.supervise.ranks.progress import Phase, Progress
from longhaul.supervise.ranks.watchdog import (
    Learned,
    ProcessState,
    Rank,
    deadline,
    doubted,
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
    """Looked at just before each sign, and when it came."""
    learned = Learned()
    for look, following in zip(looks, [*looks[1:], None], strict=True):
        assert look.progress is not None
        learned = learn(learned, [look], look.progress.monotonic)
        if following is not None and following.progress is not None:
            learned = learn(learned, [look], following.progress.monotonic)
    return learned


def test_one_sign_of_life_is_enough_for_the_group() -> None:
    ranks = [rank(0, at=100.0), rank(1, at=129.0)]
    verdict = judge(158.0, 0.0, ranks, Learned(), SETTINGS)
    assert not verdict.hung
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
    quick = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=0.01))
    assert deadline("step", quick, SETTINGS) == SETTINGS.deadline_s
    assert deadline("save", quick, SETTINGS) == 20 * SETTINGS.deadline_s


def test_the_time_of_many_signs_between_two_looks_is_shared_out() -> None:
    learned = Learned()
    for number, (sign, at, now) in enumerate([(1, 0.0, 0.1), (21, 100.0, 100.2)]):
        learned = learn(learned, [rank(0, step=number, sign=sign, at=at)], now)
    assert learned.longest("step") == 5.0


def test_a_silence_counts_as_long_as_it_was_seen_whatever_signs_follow() -> None:
    """An optimizer that takes 20 s, then 50 micro-batches before anybody looks again."""
    learned = learn(Learned(), [rank(0, sign=7, at=100.0)], 100.4)
    learned = learn(learned, [rank(0, sign=7, at=100.0)], 119.9)
    assert learned.longest("step") == 0.0, "it may be a hang, which must not excuse itself"
    learned = learn(learned, [rank(0, sign=57, at=120.3)], 120.4)
    assert learned.longest("step") == pytest.approx(19.9)


def test_a_long_save_earns_a_longer_deadline() -> None:
    learned = taught(rank(0, "save", sign=1, at=0.0), rank(0, "step", sign=2, at=90.0))
    assert deadline("save", learned, SETTINGS) == 900.0
    assert learned.longest("step") == 0.0, "it is no step"


def test_looking_again_without_a_new_sign_teaches_nothing() -> None:
    once = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=3.0))
    again = learn(once, [rank(0, step=2, sign=2, at=3.0)], 29.0)
    assert again.silences == once.silences


def test_a_slow_spell_long_ago_is_forgotten_and_that_of_every_step_is_not() -> None:
    """However many signs a step gives."""
    looks = [rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=50.0)]
    looks += [rank(0, step=2 + n, sign=2 + n, at=50.0 + n) for n in range(1, 80)]
    assert taught(*looks).longest("step") == 1.0
    looks = [rank(0, step=1, sign=1, at=0.0), rank(0, step=1, sign=2, at=20.0)]
    looks += [rank(0, step=1, sign=2 + n, at=20.0 + n) for n in range(1, 80)]
    assert taught(*looks).longest("step") == 20.0


def test_until_the_first_record_a_step_may_take_as_long_as_a_start() -> None:
    """Signs of a host that runs ahead of its device come at once; then it waits for 48 s."""
    ahead = [rank(0, "step", step=0, at=100.0), rank(1, "step", step=0, at=100.0)]
    limit = SETTINGS.deadlines()["start_up_s"]
    assert not judge(148.0, 0.0, ahead, Learned(), SETTINGS).hung
    assert judge(101.0 + limit, 0.0, ahead, Learned(), SETTINGS).hung
    recorded = [rank(0, "step", step=1, at=100.0), rank(1, "step", step=0, at=100.0)]
    assert judge(148.0, 0.0, recorded, Learned(), SETTINGS).hung


@pytest.mark.parametrize("micro_batch_s", [0.7, 45.0])
def test_steps_of_45_s_are_no_hang_and_a_hang_in_one_is_found_within_its_deadline(
    micro_batch_s: float,
) -> None:
    """With many micro-batches, or with one: as on a device of which the host runs ahead."""
    learned, now, sign, next_sign = Learned(), 100.0, 1, 100.0 + micro_batch_s
    step, step_ends, last = 0, 145.0, 100.0
    while now < 1000.0:
        now += 0.5
        while next_sign <= now:
            sign, last = sign + 1, next_sign
            next_sign += micro_batch_s
        if step_ends <= now:
            step, step_ends = step + 1, step_ends + 45.0
        ranks = [rank(n, step=step, sign=sign, at=last) for n in range(2)]
        learned = learn(learned, ranks, now)
        verdict = judge(now, 0.0, ranks, learned, SETTINGS)
        assert not verdict.hung, verdict.reason
    limit = max(SETTINGS.deadline_s, 10 * micro_batch_s)
    hung_at = next(
        t for t in range(2000) if judge(last + t, 0.0, ranks, learn(learned, ranks, last + t),
                                        SETTINGS).hung
    )  # fmt: skip
    assert hung_at <= limit + 1.0


def test_what_was_learned_holds_for_the_next_attempt_and_after_a_pause() -> None:
    slow = taught(rank(0, step=1, sign=1, at=0.0), rank(0, step=2, sign=2, at=48.0))
    assert deadline("step", Learned(slow.silences), SETTINGS) == 480.0
    after = learn(Learned(slow.silences), [rank(0, step=2, sign=3, at=300.0)], 300.1)
    assert after.longest("step") == 48.0, "nobody knows what the rank did in between"


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


def test_steps_that_have_become_much_longer_are_not_a_hang_at_every_attempt() -> None:
    """From 2 s to 40 s at a stage of longer sequences, which each attempt comes to again."""
    stage = [rank(0, step=100, at=100.0)]
    learned, waited = taught(rank(0, step=99, sign=4, at=98.0), rank(0, step=100, at=100.0)), []
    for _ in range(3):
        verdict = judge(10_000.0, 0.0, stage, learned, SETTINGS)
        waited.append(verdict.deadline_s)
        learned = doubted(learned, stage, verdict)
    assert waited == [30.0, 60.0, 120.0]


def test_a_stopped_process_and_a_start_that_hangs_do_not_lengthen_the_deadline_of_a_step() -> None:
    for ranks in ([rank(0), rank(1, state="stopped")], [rank(0, step=0), Rank(1, "host-a", None)]):
        verdict = judge(10_000.0, 0.0, ranks, Learned(), SETTINGS)
        assert verdict.hung
        assert deadline("step", doubted(Learned(), ranks, verdict), SETTINGS) == 30.0
