"""The lab of ends: its held-out cases, its faults, and how ends are compared."""

import hashlib
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.divergence_lab import second
from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.drive import recipe_of
from benchmarks.divergence_lab.ends import score
from benchmarks.divergence_lab.ends.calm import calm
from benchmarks.divergence_lab.ends.cases import WAYS, Case, Change, case, catalogue, healthy
from benchmarks.divergence_lab.ends.drive import Action, Ended, Form, settings_of, train
from benchmarks.divergence_lab.ends.make import Ends, as_json, from_json, together
from benchmarks.divergence_lab.faults import in_turn
from benchmarks.divergence_lab.other import is_of_other_text
from benchmarks.divergence_lab.runs import HARMLESS, Fault, Run
from benchmarks.divergence_lab.runs import catalogue as first_catalogue
from benchmarks.divergence_lab.split import part_of

TUNING, HELD_OUT = list(catalogue("tuning")), list(catalogue("held-out"))
HELD_OUT_CASES = "55c18635449db2b0"
SECOND_RUNS = "be291de1e1b459ac"


# --- what is held out ------------------------------------------------------------------------


def test_held_out_cases_were_fixed_before_any_of_them_was_trained() -> None:
    """Whoever changes one invalidates every published figure."""
    assert _hashed(f"{c.run.name} {c.key()} {c.undisturbed().key()}" for c in HELD_OUT) == (
        HELD_OUT_CASES
    )


def test_the_second_held_out_set_of_the_detectors_was_fixed_before_any_of_it_was_trained() -> None:
    runs = list(second.catalogue())
    assert _hashed(f"{run.name} {run.key()} {run.undisturbed().key()}" for run in runs) == (
        SECOND_RUNS
    )
    assert all(recipe_of(run).total_steps() for run in runs)
    assert {part_of(run.name) for run in runs} == {"second"}
    assert {run.mechanism for run in runs} == {"healthy", *CAUSES}


def _hashed(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_what_is_held_out_has_other_text_and_other_shapes() -> None:
    seen = [c.run for c in TUNING] + list(first_catalogue())
    new = [c.run for c in HELD_OUT] + list(second.catalogue())
    assert not any(is_of_other_text(run) for run in seen)
    assert all(is_of_other_text(run) for run in new)
    assert not {_shape(run) for run in seen} & {_shape(run) for run in new}
    assert not {run.settings.get("model.width") for run in seen} & {
        run.settings["model.width"] for run in new
    }


def _shape(run: Run) -> tuple[object, ...]:
    # Causes choose a depth of their own, so it tells nothing.
    return tuple(run.settings.get(f"model.{what}") for what in ("width", "heads", "context"))


def test_every_way_to_go_wrong_and_every_harmless_disturbance_is_in_both_parts() -> None:
    for cases in (TUNING, HELD_OUT):
        unseen = {"output-logits"} if cases is TUNING else set()
        assert {c.way for c in cases} == {"healthy", *WAYS} - unseen
    assert {h for c in (*TUNING, *HELD_OUT) for h in c.run.harmless} == set(HARMLESS)
    assert {"set", "fork", "restart"} == {c.change.how for c in TUNING if c.change}
    assert {*CAUSES} <= {*WAYS}


def test_all_cases_are_recipes_that_longhaul_takes_and_change_what_a_live_run_may() -> None:
    for c in (*TUNING, *HELD_OUT):
        settings = settings_of(c, "policy")
        assert settings.recover.mode == "act"
        assert settings_of(c, "nobody").recover.mode == "report"
        if c.change is not None:
            assert 0 < c.change.back + 1 < c.change.at < (settings.total_steps() or 0)


# --- the real loop ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ends")


def short(change: Change | None = None, fault: Fault | None = None, lr: float = 3e-3) -> Case:
    """A run of a second, on made-up text alone."""
    source = {"name": "made-up", "path": "synthetic", "weight": 1.0}
    settings = {
        "train.steps": 60, "data.sources": [source], "model.layers": 1, "optim.lr": lr,
        "checkpoint.interval_steps": 20, "checkpoint.snapshot_interval_steps": 5,
    }  # fmt: skip
    run = Run("set-lr-x10/000", "set-lr-x10", 7, settings, fault=fault,
              onset=1 if fault is None else fault.onset)  # fmt: skip
    return Case(run, change)


@pytest.mark.parametrize(
    "how", ["set", *(pytest.param(how, marks=pytest.mark.slow) for how in ("fork", "restart"))]
)
def test_what_a_person_does_holds_from_that_step_on(how: str, home: Path) -> None:
    """Equal to the twin to the bit before it, and another run after it."""
    changed = short(Change(how, {"optim.lr": 0.03}, 30))  # type: ignore[arg-type]
    twin, nobody = (train(changed, form, home) for form in ("undisturbed", "nobody"))
    assert (twin.code, nobody.code, nobody.step) == (0, 0, 60)
    assert nobody.curve[:3] == twin.curve[:3]
    assert nobody.curve[3:] != twin.curve[3:]
    assert nobody.actions == ()
    assert nobody.again == 0


def test_a_fault_nobody_acts_on_is_the_same_each_time(home: Path) -> None:
    poisoned = short(fault=Fault("noise-tokens", 20, 1.0, 10))
    first, again = (train(poisoned, "nobody", home) for _ in range(2))
    assert (first.loss, first.curve) == (again.loss, again.curve)
    assert first.curve[2] > train(poisoned, "undisturbed", home).curve[2] + 0.2


def test_what_comes_now_and_then_touches_one_step_in_eight_and_the_same_ones_each_time() -> None:
    fault = Fault("gradient-spikes", 100, 12.0, 160)
    touched = [step for step in range(1, 400) if in_turn(fault, step)]
    assert touched == [step for step in range(1, 400) if in_turn(fault, step)]
    assert 10 <= len(touched) <= 30
    assert all(100 <= step < 260 for step in touched)
    always = replace(fault, kind="gradient-spike")
    assert [step for step in range(1, 400) if in_turn(always, step)] == list(range(100, 260))


# --- the figures -----------------------------------------------------------------------------

END = Ended(
    "set-decay/000", "policy", 0, 2.0, 500, 500, 500, 0, 5.0, 0.0, (), (), (2.0,)
)  # fmt: skip
BACK = Action(400, "growth", ("rollback", "lower-lr"), 380, {"optim.lr": 1e-3}, "", "")


def one(twin: float, nobody: float, policy: float | None, *actions: Action) -> score.Compared:
    acting = replace(END, loss=policy, code=0 if policy else 17, actions=actions)
    ends: dict[Form, Ended] = {
        "undisturbed": replace(END, form="undisturbed", loss=twin),
        "nobody": replace(END, form="nobody", loss=nobody),
        "policy": acting,
    }
    return score.compared({"set-decay/000": ends})[0]


@pytest.mark.parametrize(
    ("nobody", "policy", "worse"),
    [
        (2.0, 2.03, False),
        (2.0, 2.05, True),
        (3.0, 2.05, False),
        (math.nan, 2.9, False),
        (3.0, None, False),
        (2.1, None, True),
    ],
    ids=["within", "beyond", "better", "diverged", "stopped rightly", "stopped for nothing"],
)
def test_worse_with_the_policy_than_without(
    nobody: float, policy: float | None, worse: bool
) -> None:
    assert one(2.0, nobody, policy, BACK).worse is worse


def test_a_run_that_was_stopped_has_no_end_and_is_not_recovered() -> None:
    stopped = one(2.0, 3.0, None, BACK)
    assert math.isinf(stopped.end)
    assert not stopped.recovered
    assert one(2.0, 3.0, 2.1, BACK).recovered
    assert not one(2.0, 3.0, 3.0).recovered


def test_what_was_done_before_anything_was_wrong_is_needless() -> None:
    onset = case("set-decay", 0).onset
    early, late = replace(BACK, step=onset - 5, to=onset - 20), replace(BACK, step=onset + 5)
    long = healthy(0)
    total = int(long.run.settings["train.steps"])
    ends: Ends = {
        "set-decay/000": {"policy": replace(END, actions=(early, late, early))},
        "healthy/000": {"policy": replace(END, name="healthy/000", total=total, made=total,
                                          actions=(late,))},
    }  # fmt: skip
    quiet = calm(ends)
    assert quiet.actions == 2
    assert quiet.steps == total + onset - 1
    assert quiet.per_10_000 == pytest.approx(20_000 / quiet.steps)


def test_ends_come_back_as_they_were_kept() -> None:
    kept = replace(END, actions=(BACK,), alarms=((401, "growth"),))
    assert from_json(as_json(kept)) == kept
    assert together([kept]) == {"set-decay/000": {"policy": kept}}


def test_the_95th_percentile_is_the_nearest_rank() -> None:
    assert score.percentile(range(1, 101), 0.95) == 95
    assert score.percentile([3.0], 0.95) == 3.0
