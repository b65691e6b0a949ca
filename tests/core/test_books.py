import random

from longhaul.core.clocks import BUCKETS, FakeClock, TimeBooks, goodput


def test_every_second_is_booked_to_exactly_one_bucket() -> None:
    clock, chance = FakeClock(), random.Random(1)
    books = TimeBooks(clock, "restart", already=1.5)
    total = 1.5
    booked: dict[str, float] = {}
    for _ in range(200):
        with books.booked(chance.choice(BUCKETS)):
            clock.advance(chance.random())
            with books.booked(chance.choice(BUCKETS)):
                clock.advance(chance.random())
        clock.advance(0.25)
        if chance.random() < 0.3:
            for bucket, seconds in books.drain().items():
                booked[bucket] = booked.get(bucket, 0.0) + seconds
    for bucket, seconds in books.drain().items():
        booked[bucket] = booked.get(bucket, 0.0) + seconds
    total += clock.monotonic() - FakeClock().monotonic()
    assert abs(sum(booked.values()) - total) < 1e-3


def test_a_body_that_fails_is_booked_and_its_bucket_closed() -> None:
    clock = FakeClock()
    books = TimeBooks(clock, "training")
    try:
        with books.booked("evaluation"):
            clock.advance(2)
            raise OSError
    except OSError:
        clock.advance(1)
    assert books.drain() == {"evaluation": 2, "training": 1}


def test_goodput_is_the_share_of_training_that_was_kept() -> None:
    assert goodput({"training": 6, "redone": 2, "idle": 4}) == 0.5
