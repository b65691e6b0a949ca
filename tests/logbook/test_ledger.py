import errno
import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.load import with_values
from longhaul.core.records import Decision
from longhaul.logbook import journal as journal_module
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import (
    HEALTHS,
    CheckpointHealth,
    LedgerError,
    LedgerState,
    fold,
    fold_all,
    load_ledger,
    write_decision,
)


def decided(kind, data, from_step=0, step=0):
    return Decision(
        kind=kind, attempt=1, step=step, from_step=from_step, time=1.0, who="anna", reason="why",
        data=data,
    )  # fmt: skip


def to_set(path, value, from_step=0):
    return decided("set", {"path": path, "value": value}, from_step)


def to_health(word, manifest="m1", checkpoint=100):
    data = {"checkpoint": checkpoint, "health": word, "manifest": manifest}
    return decided("checkpoint-health", data)


def to_unset(path):
    return decided("unset", {"path": path})


paths = st.sampled_from(["optim.lr", "optim.clip", "train.steps"])
from_steps = st.sampled_from([0, 0, 5, 10, 20])
sets = st.builds(to_set, paths, st.integers(0, 99), from_steps)
unsets = st.builds(to_unset, paths)
ranges = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(
    lambda pair: decided("skip", {"begin": pair[0], "end": pair[0] + pair[1]})
)
healths = st.builds(to_health, st.sampled_from(HEALTHS), st.sampled_from(["m1", "m2"]))
histories = st.lists(
    st.one_of(sets, unsets, ranges, healths, st.just(decided("stop", {}))), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(histories, st.integers(0, 25))
def test_the_last_decision_written_wins_among_those_whose_step_has_come(history, step):
    wanted = {}
    for decision in history:
        if decision.kind == "set" and decision.from_step <= step:
            wanted[decision.data["path"]] = decision.data["value"]
        if decision.kind == "unset":
            wanted.pop(decision.data["path"], None)
    assert fold_all(history).overrides_at(step) == wanted


@settings(max_examples=60, deadline=None)
@given(histories, histories)
def test_folding_is_deterministic_and_can_be_taken_up_anywhere(before, after):
    assert functools.reduce(fold, after, fold_all(before)) == fold_all([*before, *after])
    assert fold_all(before).decisions == len(before)


@settings(max_examples=60, deadline=None)
@given(histories, st.integers(0, 25))
def test_an_override_only_goes_when_a_later_one_names_its_setting(history, step):
    state = LedgerState()
    for decision in history:
        before, state = state, fold(state, decision)
        untouched = before.overrides_at(step)
        if decision.kind in ("set", "unset"):
            untouched.pop(decision.data["path"], None)
        assert untouched.items() <= state.overrides_at(step).items()


@settings(max_examples=60, deadline=None)
@given(histories)
def test_between_two_changes_nothing_changes(history):
    state = fold_all(history)
    changes = {item.from_step for items in state.overrides.values() for item in items}
    for step in range(25):
        if step + 1 not in changes:
            assert state.overrides_at(step) == state.overrides_at(step + 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(ranges, max_size=10))
def test_skips_are_the_union_of_all_ranges_and_stay_apart(history):
    state = fold_all(history)
    wanted = {draw for d in history for draw in range(d.data["begin"], d.data["end"])}
    assert {draw for begin, end in state.skips for draw in range(begin, end)} == wanted
    assert all(a[1] < b[0] for a, b in itertools.pairwise(state.skips))


def test_an_immediate_decision_supersedes_a_scheduled_one():
    state = fold_all([to_set("optim.lr", 1, from_step=50), to_set("optim.lr", 2)])
    assert state.overrides_at(60) == {"optim.lr": 2}
    assert len(fold(state, to_set("optim.lr", 3)).overrides["optim.lr"]) == 1


def test_a_scheduled_decision_leaves_what_holds_until_then():
    state = fold_all([to_set("optim.lr", 1), to_set("optim.lr", 2, from_step=50)])
    assert state.overrides_at(49) == {"optim.lr": 1}
    assert state.overrides_at(50) == {"optim.lr": 2}
    assert state.override_at("optim.lr", 49).reason == "why"


def test_what_is_withdrawn_holds_no_more_and_is_remembered():
    state = fold_all([to_set("optim.lr", 1), to_set("optim.lr", 2, 50), to_unset("optim.lr")])
    assert state.overrides_at(60) == {}
    assert state.withdrawn["optim.lr"].value == 1
    assert fold(state, to_unset("optim.lr")).withdrawn == state.withdrawn


def test_health_only_moves_forward():
    state = fold_all([to_health("verified"), to_health("committed")])
    assert state.checkpoint_health == {100: CheckpointHealth("verified", "m1")}


def test_poisoned_is_final_for_that_checkpoint_but_not_for_the_step():
    poisoned = fold_all([to_health("good"), to_health("poisoned"), to_health("good")])
    assert poisoned.checkpoint_health[100].health == "poisoned"
    again = fold(poisoned, to_health("committed", manifest="m2"))
    known = again.checkpoint_health[100]
    assert (known.health, known.manifest) == ("committed", "m2")


@settings(max_examples=150, deadline=None)
@given(st.lists(healths, max_size=12))
def test_a_poisoned_manifest_stays_poisoned_whatever_is_saved_at_its_step_since(history):
    poisoned = set()
    state = LedgerState()
    for decision in history:
        state = fold(state, decision)
        if decision.data["health"] == "poisoned":
            poisoned.add(decision.data["manifest"])
        known = state.checkpoint_health[100]
        assert known.poisoned == poisoned
        assert {known.of(manifest) for manifest in poisoned} <= {"poisoned"}
        assert not known.unpoisoned & poisoned


def test_a_checkpoint_saved_again_at_a_step_leaves_the_former_one_poisoned():
    recover = decided(
        "recover", {"cause": "divergence", "actions": ["rollback"], "poison": [[100, "m1"]]}
    )
    saved_again = [to_health("written", ""), to_health("committed", "m2"), to_health("good", "m2")]
    known = fold_all([to_health("good"), recover, *saved_again]).checkpoint_health[100]
    assert (known.health, known.of("m1"), known.of("m2")) == ("good", "poisoned", "good")
    assert known.of("m3") == "committed", "one that the ledger has not heard of is another one"


def test_a_step_that_an_old_ledger_poisoned_without_a_hash_is_still_refused():
    poison = decided("checkpoint-health", {"checkpoint": 100, "health": "poisoned"})
    known = fold_all([poison]).checkpoint_health[100]
    assert known.of("m1") == "poisoned"
    after = fold_all([poison, to_health("verified", "m2")]).checkpoint_health[100]
    assert (after.of("m2"), after.of("m1")) == ("verified", "poisoned")
    before = fold_all([to_health("verified", "m1"), poison, to_health("verified", "m2")])
    assert before.checkpoint_health[100].poisoned == {"m1"}


@pytest.mark.parametrize(
    "decision",
    [
        decided("set", {"value": 1}),
        decided("set", {"path": "", "value": 1}),
        decided("unset", {}),
        decided("skip", {"begin": 5, "end": 5}),
        decided("skip", {"begin": "x", "end": 5}),
        decided("checkpoint-health", {"checkpoint": 1, "health": "splendid"}),
    ],
)
def test_a_decision_without_sense_is_refused_before_it_is_written(folder, decision):
    with pytest.raises(LedgerError, match=decision.kind):
        write_decision(Journal(folder, 1), LedgerState(), decision)
    assert load_ledger(folder) == (LedgerState(), 0)


def test_what_was_written_is_read_back_by_the_next_attempt(folder):
    journal, state = Journal(folder, 1), LedgerState()
    for decision in (to_set("optim.lr", 3e-4), decided("skip", {"begin": 8, "end": 16})):
        state = write_decision(journal, state, decision)
    assert load_ledger(folder) == (state, 0)
    write_decision(Journal(folder, 2), state, to_set("optim.lr", 1e-4))
    assert load_ledger(folder)[0].overrides_at(0) == {"optim.lr": 1e-4}


def test_what_cannot_be_written_is_not_applied(folder, monkeypatch):
    journal = Journal(folder, 1)
    state = write_decision(journal, LedgerState(), to_set("optim.lr", 1))

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(journal_module.os, "write", refuse)
        with pytest.raises(LedgerError, match="not applied"):
            write_decision(journal, state, to_set("optim.lr", 2))
    journal.close()
    assert load_ledger(folder) == (state, 0)


def test_effective_settings_leave_the_recipe_alone():
    recipe = {"optim": {"lr": 1, "schedule": {"shape": "cosine"}}}
    now = with_values(recipe, {"optim.schedule.shape": "wsd", "train.steps": 5})
    assert now == {"optim": {"lr": 1, "schedule": {"shape": "wsd"}}, "train": {"steps": 5}}
    assert recipe["optim"]["schedule"]["shape"] == "cosine"
