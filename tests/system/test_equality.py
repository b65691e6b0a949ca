"""Layouts train as one process does, and a mistake shows; the whole table is a benchmark."""

from dataclasses import replace
from functools import cache

import pytest
from benchmarks.equality import NUMBERS, Case, compare

from longhaul.train.equality import Distance

NEOX = (
    "model.parallel_residual=true", "model.rotary_share=0.5", 'model.rotary_scaling="yarn"',
    "model.rotary_original_context=32",
)  # fmt: skip
RIGHT = (
    Case("opt", "dp2", "adamw float32"),
    Case("opt", "tp2", "adamw float32"),
    Case("speedrun", "fsdp2", "muon float32"),
    Case("speedrun", "tp2", "muon float32"),
    Case("opt", "fsdp2", "muon float32", ("optim.cautious_decay=true",)),
    # A tied head at both ends of a pipeline; more micro-batches than stages.
    Case("opt", "pp2", "muon float32", ("batch.micro_sequences=2",)),
    # The same with two stages a rank, and an odd number of micro-batches.
    Case("opt", "interleaved pp2", "muon float32", ("batch.sequences=5",)),
    # A batch that the ranks do not divide, in micro-batches of which some are only padding.
    Case("llama", "fsdp2", "adamw float32", ("batch.sequences=5", "batch.micro_sequences=1")),
    Case(
        "llama",
        "tp2",
        "muon float32",
        (
            'optim.name="lamb"',
            "model.mlp_inner_norm=true",
            *NEOX,
        ),
    ),
    Case("llama", "fsdp2", "adamw float32", ("optim.offload=true",)),
)
RIGHT_TOO = (
    Case("llama", "fsdp2", "muon float32", ('optim.name="lamb"',)),
    Case("llama", "tp2", "adamw float32", ('optim.name="sgdw"', "optim.clip=0.1")),
    Case("llama", "pp2", "muon float32", ("batch.micro_sequences=2", *NEOX)),
)
"""Other rules in layouts that those above have: with the slow tests."""
MASKED = tuple(
    Case("llama", layout, numbers, broken="a NaN at one rank")
    for layout, numbers in (("fsdp2", "adamw float32"), ("tp2", "muon float32"))
)
WRONG = (
    Case("llama", "dp2", "muon float32", broken="mean of ranks"),
    Case("llama", "tp2", "muon float32", broken="norms of stretches"),
    Case("opt", "pp2", "muon float32", broken="two token tables"),
)


@cache
def apart(cases: tuple[Case, ...] = (*RIGHT, *MASKED, *WRONG)) -> dict[Case, Distance]:
    # Fewer steps than the table's 20.
    quick = [replace(case, steps=6) for case in cases]
    return dict(zip(cases, compare(quick).values(), strict=True))


@pytest.mark.parametrize(
    "case",
    [*RIGHT, *(pytest.param(case, marks=pytest.mark.slow) for case in RIGHT_TOO)],
    ids=lambda case: case.name,
)
def test_a_layout_trains_as_one_process_does(case: Case) -> None:
    _, loss_bar, gradient_bar = NUMBERS[case.numbers]
    measured = apart(RIGHT_TOO)[case] if case in RIGHT_TOO else apart()[case]
    assert measured.loss <= loss_bar
    assert measured.gradient <= gradient_bar, measured.weight


@pytest.mark.parametrize("case", RIGHT[2:6], ids=lambda case: case.name)
def test_gauges_are_those_of_the_whole_model_and_batch(case: Case) -> None:
    assert apart()[case].gauge <= 1e-3, apart()[case].gauge_name


@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
def test_a_nan_at_one_rank_holds_the_update_back_at_all(case: Case) -> None:
    """The next losses are those of one process that held it back."""
    assert apart()[case].loss <= NUMBERS[case.numbers][1]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.broken)
def test_a_mistake_shows(case: Case) -> None:
    assert apart()[case].gradient > 1e-2
