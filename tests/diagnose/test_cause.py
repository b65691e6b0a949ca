"""The first rung that changes the answer names the cause; alone, no machine is accused."""

import math
from dataclasses import replace

import pytest

from longhaul.diagnose.at_rest import changed_for_good
from longhaul.diagnose.cause import (
    FLOAT32,
    Ladder,
    Rounding,
    apart,
    decide,
    first_difference,
    reproduced,
)
from longhaul.diagnose.signs import Figures, Series, Symptom

HEALTHY, SPIKED = 2.5, 4.5
SYMPTOM = Symptom("loss-spike", step=20, first_step=20, healthy=HEALTHY, reached=SPIKED)
NOTHING = Symptom("none", step=20, first_step=20)


def stretch(last: float = SPIKED, scale: float = 1.0) -> Series:
    calm = [Figures(step, HEALTHY * scale, 1.0) for step in range(5, 20)]
    return (*calm, Figures(20, last * scale, 1.0))


def frames(loss: float = SPIKED, after: float = HEALTHY) -> tuple[Series, ...]:
    return (
        (Figures(5, HEALTHY, 1.0), Figures(6, HEALTHY, 1.0)),
        (Figures(20, loss, 1.0), Figures(21, after, 1.0)),
    )


REPRODUCED = Ladder(
    recorded=stretch(),
    replays=(stretch(), stretch()),
    here=frames(),
    here_again=frames(),
    beside_plain=frames(),
    as_trained=stretch(),
)
ALL_AGREE = replace(
    REPRODUCED, witness=frames(), witness_again=frames(), plain=frames(), previous=frames()
)
ELSEWHERE = replace(REPRODUCED, witness=frames(HEALTHY), witness_again=frames(HEALTHY))
CALM, SHOWN = stretch(HEALTHY), stretch()
VARIED = ((0.5, SHOWN), (0.125, SHOWN))


LASTING = Symptom("divergence", step=20, first_step=17, healthy=HEALTHY, reached=SPIKED)


def read(*losses: float) -> Series:
    return tuple(Figures(9 + n, loss, 1.0) for n, loss in enumerate(losses * 4))


USUAL, HARD = read(2.4, 2.6, 2.5), read(3.9, 4.1, 2.5, 4.0)
AS_USUAL_ONCE, HARDER = read(2.4, 2.6, 2.7), read(2.7, 2.9, 2.8)


@pytest.mark.parametrize(
    ("at_rest", "lasting"),
    [
        ((USUAL, HARD, HARD, HARD), True),
        ((USUAL, HARD, HARD, AS_USUAL_ONCE), False),
        ((USUAL, HARD, AS_USUAL_ONCE, HARD), False),
        ((USUAL, AS_USUAL_ONCE, HARD, HARD), False),
        ((USUAL, HARDER, HARDER, HARDER), False),
        ((HARD, HARD, HARD, HARD), False),
        ((USUAL, HARD, HARD, (*HARD, Figures(21, math.nan, 1.0))), False),
        ((USUAL, HARD, (*HARD, Figures(21, math.inf, 1.0)), HARD), False),
    ],
    ids=["everywhere", "not far ahead", "not near ahead", "weights at fault", "hardly harder",
         "as hard before", "a NaN ahead", "an infinity ahead"],
)  # fmt: skip
def test_data_has_changed_for_good_if_weights_at_rest_find_it_hard_as_far_as_one_can_see(
    at_rest: tuple[Series, ...], lasting: bool
) -> None:
    verdict = changed_for_good(LASTING, at_rest)
    assert (verdict is not None) is lasting
    if verdict is not None:
        assert (verdict.cause, verdict.rung, verdict.lasting) == ("data", "rest", True)
        assert "3.625 nats on it, 3.625 or more on what comes" in verdict.sentence


JUMPED = Symptom("gradient-spike", step=20, first_step=20, healthy=1.0, reached=8.0)
STEEP = tuple(replace(f, gradient_norm=4.0 + f.step % 3) for f in USUAL)
UNEVEN = tuple(replace(f, gradient_norm=9.0 if f.step % 6 == 0 else 1.0) for f in USUAL)


@pytest.mark.parametrize(
    ("at_rest", "found_by"),
    [
        ((USUAL, HARD, HARD, HARD), "loss"),
        ((USUAL, STEEP, STEEP, STEEP), "gradient norm"),
        ((USUAL, STEEP, STEEP, USUAL), ""),
        ((USUAL, STEEP, USUAL, STEEP), ""),
        ((USUAL, UNEVEN, UNEVEN, USUAL), ""),
        ((STEEP, STEEP, STEEP, STEEP), ""),
        ((USUAL, STEEP, STEEP, (*STEEP, Figures(21, 2.5, math.inf))), ""),
        ((USUAL, STEEP, STEEP, (*STEEP, Figures(21, 2.5, 0.0))), ""),
        ((USUAL, USUAL, USUAL, USUAL), ""),
    ],
    ids=["by losses", "by gradients", "not far ahead", "not near ahead", "now and then",
         "as steep before", "an infinity ahead", "a zero ahead", "weights at fault"],
)  # fmt: skip
def test_where_gradients_stand_out_losses_or_gradients_tell_that_data_has_changed_for_good(
    at_rest: tuple[Series, ...], found_by: str
) -> None:
    verdict = changed_for_good(JUMPED, at_rest)
    assert (verdict is not None) is bool(found_by)
    if verdict is not None:
        assert verdict.lasting
        assert f"have a {found_by} of" in verdict.sentence


def test_gradients_tell_nothing_where_the_loss_stands_out() -> None:
    assert changed_for_good(LASTING, (USUAL, STEEP, STEEP, STEEP)) is None


@pytest.mark.parametrize(
    ("ladder", "cause", "rung"),
    [
        (REPRODUCED, "undetermined", ""),
        (ALL_AGREE, "undetermined", ""),
        (ELSEWHERE, "machine", "witness"),
        (replace(ALL_AGREE, plain=frames(HEALTHY)), "parallel or kernel bug", "plain"),
        (replace(ALL_AGREE, previous=frames(HEALTHY)), "software", "software"),
        (replace(ALL_AGREE, previous=frames(after=9.0)), "software", "software"),
        (replace(ALL_AGREE, other_data=(CALM,) * 4, lower_rates=VARIED), "data", "data"),
        (replace(ALL_AGREE, other_data=(CALM,) * 4), "undetermined", ""),
        (
            replace(ALL_AGREE, other_data=(CALM, SHOWN, SHOWN, SHOWN), lower_rates=((0.5, CALM),)),
            "hyper-parameter",
            "rate",
        ),
        (
            replace(ALL_AGREE, other_data=(CALM,) * 4, lower_rates=((0.5, CALM),)),
            "hyper-parameter",
            "rate",
        ),
        (
            replace(ALL_AGREE, other_data=(SHOWN,) * 4, lower_rates=VARIED),
            "undetermined",
            "",
        ),
    ],
)
def test_the_first_rung_that_changes_the_answer_names_it(
    ladder: Ladder, cause: str, rung: str
) -> None:
    verdict = decide(SYMPTOM, ladder)
    assert (verdict.cause, verdict.rung) == (cause, rung)
    assert verdict.sentence


def test_the_machine_comes_before_the_kernel_and_the_kernel_before_software() -> None:
    all_differ = replace(ELSEWHERE, plain=frames(HEALTHY), previous=frames(HEALTHY))
    assert decide(SYMPTOM, all_differ).cause == "machine"
    alone = replace(all_differ, witness=None, witness_again=None)
    assert decide(SYMPTOM, alone).cause == "parallel or kernel bug"


def test_a_small_difference_does_not_explain_a_large_symptom_but_is_told_without_one() -> None:
    slightly = frames(SPIKED * (1 + 3 * FLOAT32.loss))
    ladder = replace(REPRODUCED, witness=slightly, witness_again=slightly)
    assert decide(SYMPTOM, ladder).cause == "undetermined"
    assert decide(NOTHING, ladder).cause == "machine"


def test_a_witness_that_contradicts_itself_is_none() -> None:
    ladder = replace(REPRODUCED, witness=frames(HEALTHY), witness_again=frames(7.0))
    assert decide(SYMPTOM, ladder).cause == "undetermined"


WAS_OTHERWISE = replace(
    REPRODUCED,
    replays=(stretch(HEALTHY),) * 2,
    here=frames(HEALTHY),
    here_again=frames(HEALTHY),
)
WITNESSED = replace(WAS_OTHERWISE, witness=frames(HEALTHY), witness_again=frames(HEALTHY))


def test_a_record_that_nobody_reproduces_accuses_the_machine_only_before_a_witness() -> None:
    assert decide(SYMPTOM, WAS_OTHERWISE).cause == "undetermined"
    assert (
        "no other"
        in decide(SYMPTOM, replace(WAS_OTHERWISE, skipped={"witness": "no other device"})).sentence
    )
    assert decide(SYMPTOM, WITNESSED).cause == "machine"


def test_a_record_of_other_software_or_of_an_unknown_state_accuses_no_machine() -> None:
    assert decide(SYMPTOM, replace(WITNESSED, same_software=False)).cause == "undetermined"
    # Nothing agrees from the very first step on: the state may not be what it was.
    begins = replace(WITNESSED, recorded=stretch(scale=1.1))
    assert decide(SYMPTOM, begins).cause == "undetermined"


def test_a_record_that_only_the_software_before_reproduces_names_the_software() -> None:
    assert decide(SYMPTOM, replace(WITNESSED, previous=frames())).cause == "software"


def test_a_record_that_only_the_witness_reproduces_names_the_machine() -> None:
    ladder = replace(WAS_OTHERWISE, witness=frames(), witness_again=frames())
    assert decide(SYMPTOM, ladder).cause == "machine"


def test_replays_that_differ_at_once_name_machine_or_race() -> None:
    ladder = replace(REPRODUCED, replays=(stretch(), stretch(9.0)))
    assert not reproduced(ladder)
    assert decide(SYMPTOM, ladder).cause == "undetermined"
    steady = replace(ladder, witness=frames(), witness_again=frames())
    assert decide(SYMPTOM, steady).cause == "machine"
    racing = replace(ladder, witness=frames(), witness_again=frames(9.0))
    assert decide(SYMPTOM, racing).cause == "parallel or kernel bug"


def test_rounding_that_grows_from_step_to_step_is_noise() -> None:
    grown = tuple(replace(f, loss=f.loss * (1 + 1e-7 * 2.0 ** (f.step - 5))) for f in stretch())
    ladder = replace(REPRODUCED, replays=(stretch(), grown))
    assert reproduced(ladder)
    half_way = tuple(replace(f, loss=f.loss * (1 + 4e-7 * 2.0 ** (f.step - 5))) for f in stretch())
    assert first_difference(replace(ladder, recorded=half_way)) is None
    assert first_difference(replace(ladder, recorded=stretch(scale=1.01))) == 5


def test_not_being_finite_is_agreed_on_or_infinitely_far() -> None:
    bad, masked = Figures(1, math.nan, 1.0), Figures(1, 2.0, 1.0, masked=True)
    assert apart(bad, masked, FLOAT32) == 0
    assert apart(bad, Figures(1, 2.0, 1.0), FLOAT32) == math.inf
    unit = Rounding(0.1, 0.1)
    assert apart(Figures(1, 1.0, 1.0), Figures(1, 0.8, 1.0), unit) == pytest.approx(2.0)


def test_gauges_are_compared_by_their_largest_layer() -> None:
    a = Figures(1, 2.0, 1.0, gauges={"residual_rms": (1e-9, 10.0)})
    b = Figures(1, 2.0, 1.0, gauges={"residual_rms": (2e-9, 10.0), "unknown": (1.0,)})
    assert apart(a, b, FLOAT32) < 1
    c = Figures(1, 2.0, 1.0, gauges={"residual_rms": (1e-9, 12.0)})
    assert apart(a, c, FLOAT32) > 1
