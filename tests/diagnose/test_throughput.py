"""Throughput."""


def test_a_lasting_slowdown_is_told_once_with_its_beginning(made):
    def slow(record):
        return {"seconds": {"training": 0.3}} if record.step > 700 else {}

    (finding,) = made.judge(made.changed(made.healthy(1000), slow))
    assert finding.kind == "throughput-drop"
    assert finding.step <= 750
    assert abs(finding.first_step - 700) <= 10


def test_steps_seen_complete_at_once_carry_their_seconds_together(made):
    def lagging(record):
        return {"seconds": {"training": 0.5} if record.step % 5 == 0 else {}}

    assert made.judge(made.changed(made.healthy(1000), lagging)) == []


def test_one_slow_step_is_nothing(made):
    def hiccup(record):
        return {"seconds": {"training": 30.0}} if record.step % 200 == 7 else {}

    assert made.judge(made.changed(made.healthy(1000), hiccup)) == []
