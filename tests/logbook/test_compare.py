from longhaul.logbook.ledger import LedgerState, fold_all
from longhaul.logbook.segments import (
    SegmentNumber,
    drift_from_recipe,
    scheduled,
    segment_differences,
)

RECIPE = {"optim": {"lr": 1e-3, "clip": 1.0}, "train": {"steps": 100}}


def test_every_part_of_a_segment_is_compared(make_opening):
    old = make_opening(
        settings=RECIPE, nodes=("a",),
        fingerprint={
            "software": {"packages": {"torch": "2.11"}}, "torch": {"tf32": False},
            "environment": {}, "machine": {"host": "a"}, "data": {"shards": "abc"}, "other": 1,
        },
    )  # fmt: skip
    new = make_opening(
        "1.01", settings={**RECIPE, "optim": {"lr": 1e-4, "clip": 1.0}}, nodes=("b",),
        fingerprint={
            "software": {"packages": {"torch": "2.12", "numpy": "2"}}, "torch": {"tf32": True},
            "environment": {"NCCL_DEBUG": "INFO"}, "machine": {"host": "a"},
            "data": {"shards": "abc"}, "other": 2,
        },
    )  # fmt: skip
    found = segment_differences(old, new)
    assert found == {
        "settings": {"optim.lr": (1e-3, 1e-4)},
        "software": {"packages.torch": ("2.11", "2.12"), "packages.numpy": (None, "2")},
        "machine": {},
        "environment": {"NCCL_DEBUG": (None, "INFO")},
        "torch": {"tf32": (False, True)},
        "data": {},
        "nodes": {"nodes": (["a"], ["b"])},
        "other": {"other": (1, 2)},
    }
    assert list(found) == [
        "settings", "software", "machine", "environment", "torch", "data", "nodes", "other",
    ]  # fmt: skip


def test_nothing_differs_from_the_recipe_at_first(make_opening):
    assert drift_from_recipe(RECIPE, [make_opening(settings=RECIPE)], LedgerState(), 0) == {}


def test_a_decision_explains_what_it_changed_from_its_step_on(make_opening, make_decision):
    ledger = fold_all([make_decision(value=1e-4, from_step=50)])
    segments = [make_opening(settings=RECIPE)]
    assert drift_from_recipe(RECIPE, segments, ledger, 49) == {}
    assert [(path, o.from_step) for path, o in scheduled(ledger, 49)] == [("optim.lr", 50)]
    assert drift_from_recipe(RECIPE, segments, ledger, 50) == {
        "optim.lr": (1e-3, 1e-4, "set by anna at step 5: spikes")
    }
    assert scheduled(ledger, 50) == []


def test_a_decision_back_to_the_recipe_is_no_drift(make_opening, make_decision):
    ledger = fold_all([make_decision(value=1e-4), make_decision(value=1e-3)])
    lowered = {**RECIPE, "optim": {"lr": 1e-4, "clip": 1.0}}
    assert drift_from_recipe(RECIPE, [make_opening(settings=lowered)], ledger, 9) == {}


def test_what_no_decision_changed_is_put_down_to_its_segment_or_the_recipe(make_opening):
    now = {"optim": {"lr": 1e-3, "clip": 0.5}, "train": {"steps": 200}}
    segments = [
        make_opening(settings=RECIPE),
        make_opening(
            "1.01", settings=now, parent=SegmentNumber(1, 0), reason="recipe changed",
            difference={"optim.clip": (1.0, 0.5)},
        ),
    ]  # fmt: skip
    drifts = drift_from_recipe(RECIPE, segments, LedgerState(), 0)
    why = {path: why for path, (_, _, why) in drifts.items()}
    assert why == {
        "optim.clip": "since segment 1.01: recipe changed",
        "train.steps": "the recipe was changed after the last start",
    }
