"""The prevention study: which runs it makes, how it counts, and what its timings compare."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.common import Ratio
from benchmarks.divergence_lab import prevention, switch_costs
from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.drive import recipe_of
from benchmarks.divergence_lab.generate import Made
from benchmarks.divergence_lab.prevention import (
    Rerun,
    chosen,
    is_made,
    planned,
    rerun,
    sampled,
    stored_truths,
)
from benchmarks.divergence_lab.runs import catalogue
from benchmarks.divergence_lab.switches import (
    ALL,
    AS_IT_WAS,
    HALF_WITH,
    HALF_WITHOUT,
    ISLANDS,
    NONE,
    SWITCHES,
    WHOLE_FORMS,
    forms,
    in_form,
)  # fmt: skip
from benchmarks.divergence_lab.truth import Truth

from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.train import PrecisionSection
from longhaul.model.initialise import build, to_number_format

FORMS = forms()


@pytest.fixture(scope="module")
def recipes():
    truths = stored_truths()
    return chosen([run for run in catalogue() if run.name in truths], truths)


# --- what is trained -------------------------------------------------------------------------


def test_a_form_changes_a_run_and_its_twin_alike(recipes) -> None:
    """Otherwise the switch itself would count as the harm."""
    for run in recipes[:20]:
        for name, changes in FORMS.items():
            changed = in_form(run, name, changes)
            before = {path for path, v in run.settings.items()
                      if run.undisturbed().settings.get(path) != v}  # fmt: skip
            after = {path for path, v in changed.settings.items()
                     if changed.undisturbed().settings.get(path) != v}  # fmt: skip
            assert after == before - {"monitor.gauge_interval_steps"}
            assert changed.fault == run.fault
            assert changed.later == run.later


def test_one_off_turns_off_that_switch_and_no_other() -> None:
    for switch in SWITCHES:
        form = FORMS[f"all but {switch.name}"]
        changed = {path for path, value in form.items() if FORMS[ALL][path] != value}
        assert changed == set(switch.off)
        assert {path: form[path] for path in switch.off} == dict(switch.off)
    differ = {k for k, v in FORMS[HALF_WITH].items() if FORMS[HALF_WITHOUT][k] != v}
    assert differ == {"precision.islands"}


def test_all_switches_on_are_those_of_yalm_stable() -> None:
    model = load_recipe("yalm-stable").recipe.model
    for path, value in FORMS[ALL].items():
        wanted = model.width // 2 if value == "half" else value
        assert getattr(model, path.removeprefix("model.")) == wanted


def test_every_form_of_a_recipe_is_one_that_longhaul_takes(recipes) -> None:
    # A head that starts at zero cannot be tied; the lab has recipes with one.
    zero_head = next(r for r in catalogue() if r.settings.get("model.zero_head"))
    for run in (*sampled(recipes, 1), zero_head):
        for name, changes in FORMS.items():
            changed = in_form(run, name, changes)
            recipe_of(changed)
            recipe_of(changed.undisturbed())


def test_recipes_are_those_that_came_to_harm_by_their_numbers(recipes) -> None:
    truths = stored_truths()
    assert all(truths[run.name].harmed for run in recipes)
    ways = {run.mechanism for run in recipes}
    assert ways == set(CAUSES) - set(prevention.NOT_BY_NUMBERS)


def test_a_smaller_sample_is_part_of_a_larger_one(recipes) -> None:
    """So that a study that was broken off has made a smaller one in full."""
    small, large = sampled(recipes, 2), sampled(recipes, 3)
    assert large[: len(small)] == small
    assert {sum(r.mechanism == way for r in small) for way in {r.mechanism for r in small}} == {2}


def test_a_recipe_of_the_sample_is_made_in_all_forms_before_the_next(recipes) -> None:
    sample = sampled(recipes, 2)
    plan = planned(recipes, sample)
    place = 0
    for run in sample:
        # What emulates fp16 means nothing in bfloat16 weights.
        left_out = {HALF_WITH, HALF_WITHOUT} if run.half_shift is not None else set()
        anew = set(FORMS) - {AS_IT_WAS} - left_out
        mine = plan[place : place + len(anew)]
        assert {r.name for r, _ in mine} == {run.name}
        assert {form for _, form in mine} == anew
        place += len(anew)
    assert len({(run.name, form) for run, form in plan}) == len(plan)
    for form in (NONE, ALL):
        assert {run.name for run, f in plan if f == form} == {run.name for run in recipes}


@pytest.mark.parametrize("sound", [True, False])
def test_without_a_sound_twin_nothing_is_judged(recipes, monkeypatch, tmp_path, sound) -> None:
    trained = []

    def make(run, home):
        trained.append(run.name)
        is_twin = run.fault is None and not run.later and run.twin is None
        outcome = "diverged" if not is_twin else "in-band" if sound else "doubtful"
        return Made(run.name, run.mechanism, (), Truth(outcome, 1, None, 0.0, 0.25), ())

    monkeypatch.setattr(prevention, "make", make)
    done = rerun((recipes[0], ALL), tmp_path)
    assert done.outcome == ("diverged" if sound else None)
    assert done.judged is done.harmed is sound
    assert len(trained) == (2 if sound else 1)


@pytest.mark.parametrize(
    ("has_twin", "has_run", "sound", "expected"),
    [(True, True, True, True), (True, False, False, True), (True, False, True, False),
     (False, True, True, False), (False, False, True, False)],
)  # fmt: skip
def test_what_can_be_told_without_training_is_made(
    recipes, monkeypatch, tmp_path, has_twin, has_run, sound, expected
) -> None:
    truth = Truth("in-band" if sound else "doubtful", 1, None, 0.0, 0.25)
    monkeypatch.setattr(prevention, "make", lambda run, home: Made("", "", (), truth, ()))
    changed = in_form(recipes[0], ALL, FORMS[ALL])
    (tmp_path / "traces").mkdir()
    for exists, run in ((has_run, changed), (has_twin, changed.undisturbed())):
        if exists:
            (tmp_path / "traces" / f"{run.key()}.parquet").touch()
    assert is_made((recipes[0], ALL), tmp_path) is expected


# --- how it is counted -----------------------------------------------------------------------


def study(outcomes):
    """Reruns from form → outcomes of recipes 0, 1, …"""
    return [
        Rerun(f"bad-stretch/{n:03d}", "bad-stretch", form, outcome)
        for form, of_form in outcomes.items()
        for n, outcome in enumerate(of_form)
    ]


def test_recipes_without_a_sound_twin_are_left_out_of_the_share_and_told() -> None:
    reruns = study({form: ["diverged", None, "in-band", "spiked"] for form in FORMS})
    *rows, total, diverged, left_out = prevention.by_way(reruns)
    mine = next(row for row in rows if row[0] == CAUSES["bad-stretch"].says)
    assert set(mine[1:]) == {"2/3"}
    assert all(cell.startswith("0.67 (") for cell in total[1:])
    assert all(cell.startswith("0.33 (") for cell in diverged[1:])
    assert left_out[1:] == ("1",) * len(WHOLE_FORMS)


def test_each_recipe_is_compared_with_itself_in_all_switches() -> None:
    without = f"all but {SWITCHES[0].name}"
    outcomes = {form: ["in-band"] * 4 for form in FORMS}
    outcomes[ALL] = ["in-band", "in-band", "spiked", None]
    outcomes[without] = ["diverged", "stalled", "doubtful", "diverged"]
    row = next(r for r in prevention.by_form(study(outcomes)) if r[0] == without)
    assert row[1].startswith("0.75 (")
    assert row[3:] == ("2", "1", "0")


def test_shares_are_of_all_recipes_and_of_the_sample_apart() -> None:
    reruns = study({form: ["diverged", "in-band", "in-band", "in-band"] for form in FORMS})
    bars = {bar.name: bar for bar in prevention.bars(reruns, {"bad-stretch/000"})}
    assert bars[f"share of all recipes that comes to harm: {ALL}"].value == 0.25
    assert bars[f"share of the sample that comes to harm: {ALL}"].value == 1.0


# --- what the timings compare ----------------------------------------------------------------


def half_model():
    base = load_recipe("yalm-stable").recipe
    small = {"model.layers": 2, "model.width": 32, "model.embedding_width": 16,
             "model.mlp_width": 48, "model.context": 16} | dict(ISLANDS.on)  # fmt: skip
    recipe = with_overrides(base, small)
    model = build(recipe.model, 64, recipe.seed)
    to_number_format(model, PrecisionSection(compute="bf16_weights"))
    return model


@pytest.mark.parametrize(
    ("prepare", "stream", "norms"),
    [(lambda model: None, torch.float32, torch.float32),
     (switch_costs._only_norms, torch.bfloat16, torch.float32),
     (switch_costs._only_stream, torch.float32, torch.bfloat16)],
)  # fmt: skip
def test_parts_of_the_islands_are_what_they_say(prepare, stream, norms) -> None:
    model, seen = half_model(), {}
    prepare(model)
    block = model.blocks[1]
    block.register_forward_hook(lambda m, given, out: seen.update(stream=out.dtype))
    block.mlp_norm.register_forward_hook(
        lambda m, given, out: seen.update(norms=m.weight.dtype), prepend=True
    )
    tokens_BT = torch.arange(32).view(2, 16)
    exact = half_model()(tokens_BT, tokens_BT)
    loss = model(tokens_BT, tokens_BT)
    loss.backward()
    assert seen == {"stream": stream, "norms": norms}
    assert torch.isclose(loss, exact, rtol=0.01)


def test_a_loss_in_half_is_the_same_loss_but_for_rounding() -> None:
    model, tokens_BT = half_model(), torch.arange(32).view(2, 16)
    exact = model(tokens_BT, tokens_BT)
    switch_costs._loss_in_half(model)
    assert torch.isclose(model(tokens_BT, tokens_BT, window=None), exact, rtol=0.01)


def test_islands_are_held_against_their_bar_by_the_end_of_the_interval() -> None:
    def met(low, mean, high, name=ISLANDS.name):
        return switch_costs.bars([switch_costs.Cost(name, Ratio(mean, low, high))])[0].met

    assert met(0.99, 1.01, 1.03)
    assert met(0.99, 1.01, 1.05) is False
    assert met(1.2, 1.3, 1.4, name="GEGLU") is None
    assert switch_costs.bars([switch_costs.Cost(ISLANDS.name, None)])[0].value is None
