import math
import shutil

import pytest

from fakes import FakeClock
from longhaul.board import view
from longhaul.board.curves import means, note_kept, pace, step_totals, thinned, tokens_seen
from longhaul.board.live_run import LiveRun
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.queries import compact
from longhaul.logbook.segments import read_segments


def settled(folder):
    connection = LiveRun(folder).connection
    note_kept(connection, read_segments(folder))
    return connection


@pytest.fixture(scope="module")
def spiky(shared_story):
    """10,000 steps with one spike, one NaN, and the last 100 rolled back."""
    story = shared_story
    story.every = 1000
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 4321)
    story.lr = 99.0  # a spike of one step in something that is otherwise flat
    story.train(4321, 4322)
    story.lr = float("nan")
    story.train(4322, 4323)
    story.lr = 6e-4
    story.train(4323, 10000)
    story.open("1.01", "1.00", 9900, "back")
    story.train(9900, 9950)
    return story.close()


def test_a_spike_of_one_step_survives_thinning_and_nan_does_not_enter(spiky):
    with settled(spiky) as connection:
        curves = thinned(connection, ["learning_rate"], most_points=200)["learning_rate"]
        values = [y for curve in curves for y in curve.y]
        assert max(values) == 99.0
        assert all(map(math.isfinite, values))
        assert len(values) <= 200 + 4 * len(curves)
        assert all(list(curve.x) == sorted(curve.x) for curve in curves)


def test_what_was_rolled_back_is_a_curve_of_its_own(spiky):
    with settled(spiky) as connection:
        curves = {(c.segment, c.kept): c for c in thinned(connection, ["loss"])["loss"]}
        assert set(curves) == {("1.00", True), ("1.00", False), ("1.01", True)}
        assert max(curves["1.00", True].x) <= 9900 < min(curves["1.00", False].x)
        kept, lost, _ = step_totals(connection)
        assert (kept, lost) == (9950 * 64 * 1024, 100 * 64 * 1024)


def test_a_short_run_keeps_every_point(told):
    with settled(told) as connection:
        rows = connection.execute("SELECT count(*) FROM steps").fetchone()
        assert sum(len(curve.x) for curve in thinned(connection, ["loss"])["loss"]) == rows[0]


def test_throughput_is_tokens_over_seconds(told):
    with settled(told) as connection:
        rates = [y for curve in pace(connection)["throughput"] for y in curve.y]
        assert all(rate == pytest.approx(64 * 1024 / 1.4) for rate in rates)
        assert step_totals(connection)[2] == 0


def test_a_mean_is_drawn_only_where_steps_cannot_all_be_seen(spiky, told):
    with settled(spiky) as connection:
        found = means(connection, ["loss", "learning_rate"])
        assert 300 < sum(len(curve.x) for curve in found["loss"]) <= 405
        assert all(math.isfinite(y) for curve in found["learning_rate"] for y in curve.y)
    with settled(told) as connection:
        assert means(connection, ["loss"]) == {"loss": []}


def test_tokens_seen_are_those_of_the_steps_that_were_kept(spiky):
    with settled(spiky) as connection:
        steps, tokens = tokens_seen(connection)
        assert (steps[-1], tokens[-1]) == (9950, 9950 * 64 * 1024)
        assert all(seen == step * 64 * 1024 for step, seen in zip(steps, tokens, strict=True))
        assert len(steps) <= 601


def test_the_first_look_at_a_long_run_shows_the_extremes_of_every_step(
    spiky, monkeypatch, tmp_path
):
    spiky = RunFolder(shutil.copytree(spiky.path, tmp_path / "spiky"))
    assert view.first_look(spiky) is None  # nothing is compacted
    compact(spiky, FakeClock())
    assert view.first_look(spiky) is None  # and its steps are read as soon
    monkeypatch.setattr("longhaul.board.preview._FEWEST", 1)
    look = view.first_look(spiky)
    with settled(spiky) as connection:
        low, high = connection.execute("SELECT min(loss), max(loss) FROM steps").fetchone()
    shown = [y for trace in look["traces"] for y in trace["y"]]
    assert (min(shown), max(shown)) == pytest.approx((low, high), rel=1e-4)
    fates = {(trace["name"], trace["meta"]["kept"]) for trace in look["traces"]}
    assert fates == {("1.00", True), ("1.00", False), ("1.01", True)}
