"""What a simulated run can go back to."""

from itertools import pairwise

from longhaul.plan.simulate.saves import KEPT, Saves


def test_what_was_being_written_at_a_failure_is_no_checkpoint():
    saves = Saves(0, 1)
    saves.add(100, complete=10.0)
    saves.add(200, complete=30.0)
    saves.forget_after(20.0)
    assert saves.usable() == [0, 100]


def test_a_run_that_has_gone_back_has_no_later_checkpoint():
    saves = Saves(0, 1)
    for step in (100, 200, 300):
        saves.add(step, complete=float(step))
    saves.gone_back(200)
    assert saves.usable() == [0, 100, 200]
    saves.poison(frozenset({200, 100}))
    assert saves.usable() == [0], "the beginning is always there"


def test_old_checkpoints_are_thinned_but_reach_far_back():
    saves = Saves(0, 1)
    for number in range(1, 501):  # one every ten minutes for three and a half days
        saves.add(number, complete=600.0 * number)
    usable = saves.usable()
    assert usable[-KEPT:] == list(range(500 - KEPT + 1, 501))
    assert usable[:2] == [0, 1]
    older = usable[2:-KEPT]
    assert all(5 <= late - early <= 7 for early, late in pairwise(older))


def test_snapshots_live_as_long_as_the_nodes_that_hold_them():
    saves = Saves(25, 2)
    assert saves.newest_snapshot(60) is None
    saves.memory_begins(10)
    assert saves.newest_snapshot(60) == 50
    memory = [state for state in saves.states(60, 0.0) if state.where == "memory"]
    assert [(state.step, state.draw) for state in memory] == [(50, 100), (25, 50)]
    saves.memory_lost()
    assert saves.newest_snapshot(60) is None
