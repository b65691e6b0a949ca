from longhaul.logbook.journal import Journal
from longhaul.logbook.queries import connect
from longhaul.logbook.segments import SegmentNumber, open_segment
from longhaul.logbook.summary import Stretch, branches, kept_until, read_branches


def line(make_opening, *steps, attempts=None):
    """1.00, 1.01, … in one line, beginning at these steps."""
    numbers = [f"1.{minor:02d}" for minor in range(len(steps))]
    return [
        make_opening(
            number, step=step, opened=1e6 + place,
            attempt=(attempts or [1] * len(steps))[place],
            parent=SegmentNumber.parse(numbers[place - 1]) if place else None,
        )
        for place, (number, step) in enumerate(zip(numbers, steps, strict=True))
    ]  # fmt: skip


def grow(openings, made, events=(), live=False):
    stretches = {
        name: Stretch(name, first, last, 1e-3, 3.0) for name, (first, last) in made.items()
    }
    return {b.number: b for b in branches(openings, stretches, events, {}, live=live)}


def test_a_rollback_tells_from_where_to_where_and_what_it_cost(make_opening):
    grown = grow(line(make_opening, 0, 80), {"1.00": (1, 100), "1.01": (81, 90)}, live=True)
    first, second = grown["1.00"], grown["1.01"]
    assert (first.outcome, first.steps_lost) == ("rolled back", 20)
    assert first.ending == "rolled back at step 100 to 80 as 1.01"
    assert (second.outcome, second.steps_lost) == ("running", 0)


def test_a_later_deeper_rollback_takes_earlier_segments_steps_too(make_opening):
    made = {"1.00": (1, 100), "1.01": (81, 120), "1.02": (61, 70)}
    grown = grow(line(make_opening, 0, 80, 60), made)
    assert [grown[f"1.0{k}"].steps_lost for k in range(3)] == [40, 40, 0]
    assert grown["1.02"].outcome == "died"


def test_a_change_of_settings_loses_nothing(make_opening):
    grown = grow(line(make_opening, 0, 50), {"1.00": (1, 50), "1.01": (51, 60)})
    assert (grown["1.00"].outcome, grown["1.00"].ending) == ("went on", "went on as 1.01")
    assert grown["1.00"].steps_lost == 0


def test_a_death_names_the_restart_and_a_stop_its_reason(make_opening, make_event):
    openings = line(make_opening, 0, 40, attempts=[1, 2])
    grown = grow(openings, {"1.00": (1, 50), "1.01": (41, 45)})
    assert grown["1.00"].outcome == "restarted"
    assert grown["1.00"].ending == "died at step 50, restarted as 1.01 from step 40"
    assert grown["1.00"].steps_lost == 10
    stopped = make_event("attempt-ended", data={"reason": "stopped by anna"})
    assert grow(openings[:1], {"1.00": (1, 50)}, [stopped])["1.00"].outcome == "stopped"
    again = grow(openings, {"1.00": (1, 40), "1.01": (41, 45)}, [stopped])["1.00"]
    assert again.ending == "stopped by anna at step 40, restarted as 1.01"


def test_only_the_newest_segment_runs_and_a_finish_is_a_finish(make_opening, make_event):
    openings = line(make_opening, 0, 50)
    made = {"1.00": (1, 50), "1.01": (51, 60)}
    assert grow(openings, made, live=True)["1.01"].outcome == "running"
    done = make_event("finished", segment="1.01")
    assert grow(openings, made, [done], live=True)["1.01"].outcome == "finished"


def test_what_was_left_behind_by_a_fork_is_not_part_of_the_present_weights(make_opening):
    openings = [
        *line(make_opening, 0, 50),
        make_opening("2.00", step=30, parent=SegmentNumber(1, 0), opened=2e6),
    ]
    assert kept_until(openings)["1.00"] == 30
    grown = grow(openings, {"1.00": (1, 50), "1.01": (51, 60), "2.00": (31, 35)})
    assert [grown[n].steps_lost for n in ("1.00", "1.01", "2.00")] == [20, 10, 0]


def test_parents_in_a_circle_do_not_hang_the_reader(make_opening):
    opening = make_opening("1.00", parent=SegmentNumber(1, 0))
    assert set(kept_until([opening])) == {"1.00"}


def test_a_segment_without_steps_and_a_run_without_segments(make_opening, folder):
    (only,) = branches([make_opening()], {}, [], {}, live=False)
    assert (only.steps_lost, only.ending) == (0, "died at step 0")
    with connect(folder) as connection:
        assert read_branches(folder, connection, [], live=False) == ()


def test_time_of_lost_steps_is_read_from_the_journal(folder, make_step, make_opening):
    for opening in line(make_opening, 0, 2):
        open_segment(folder, opening)
    journal = Journal(folder, 1)
    for step in (1, 2, 3, 4):
        journal.append(make_step(step, seconds={"training": 2.0, "data_wait": 0.5}))
    journal.append(make_step(3, segment="1.01", redone=True))
    journal.close()
    with connect(folder) as connection:
        first, second = read_branches(folder, connection, [], live=True)
    assert (first.steps_lost, first.seconds, first.seconds_lost) == (2, 10.0, 5.0)
    assert second.seconds_lost == 0.0
    assert second.stretch.redone == 1
