import random

from fakes import FakeClock
from longhaul.core.clocks import BUCKETS, TimeBuckets, goodput


def test_every_second_is_booked_to_exactly_one_bucket() -> None:
    clock, chance = FakeClock(), random.Random(1)
    time_buckets = TimeBuckets(clock, "restart", already=1.5)
    total = 1.5
    track: dict[str, float] = {}
    for _ in range(200):
        with time_buckets.track(chance.choice(BUCKETS)):
            clock.advance(chance.random())
            with time_buckets.track(chance.choice(BUCKETS)):
                clock.advance(chance.random())
        clock.advance(0.25)
        if chance.random() < 0.3:
            for bucket, seconds in time_buckets.drain().items():
                track[bucket] = track.get(bucket, 0.0) + seconds
    for bucket, seconds in time_buckets.drain().items():
        track[bucket] = track.get(bucket, 0.0) + seconds
    total += clock.monotonic() - FakeClock().monotonic()
    assert abs(sum(track.values()) - total) < 1e-3


def test_a_body_that_fails_is_booked_and_its_bucket_closed() -> None:
    clock = FakeClock()
    time_buckets = TimeBuckets(clock, "training")
    try:
        with time_buckets.track("evaluation"):
            clock.advance(2)
            raise OSError
    except OSError:
        clock.advance(1)
    assert time_buckets.drain() == {"evaluation": 2, "training": 1}


def test_goodput_is_the_share_of_training_that_was_kept() -> None:
    assert goodput({"training": 6, "redone": 2, "idle": 4}) == 0.5
