"""Ideas of recipes, found and typed."""

import pytest

from longhaul.config.load import load_recipe
from longhaul.config.recipe import SETTINGS
from longhaul.core.errors import UsageError
from longhaul.plan.ladder.search import Idea
from longhaul.plan.ladder.variants import PLAIN, ideas_of

SPEEDRUN = load_recipe("speedrun-124m").recipe


def test_every_switch_that_gpt2_lacks_is_an_idea() -> None:
    names = {idea.name for idea in ideas_of(SPEEDRUN, ())}
    assert {"qk_norm", "bigram_rows", "unet_skips", "activation", "zero_head"} <= names
    assert "attention_head_scale" not in names  # the recipe does not have it
    assert [idea.name for idea in ideas_of(load_recipe("gpt2-124m").recipe, ())] == []


def test_plain_switches_are_settings() -> None:
    assert set(PLAIN) <= set(SETTINGS)


def test_an_idea_that_another_switch_needs_is_left_out_unless_it_is_typed() -> None:
    plain, scaled = (
        load_recipe("llama-1b"),
        load_recipe("llama-1b", ("model.rotary_scaling=llama3",)),
    )
    assert "positions" in {idea.name for idea in ideas_of(plain.recipe, ())}
    assert "positions" not in {idea.name for idea in ideas_of(scaled.recipe, ())}
    assert ideas_of(scaled.recipe, ("model.positions",))[0].name == "positions"


def test_ideas_can_be_typed() -> None:
    typed = ("model.qk_norm", "betas=optim.beta1=0.9,optim.beta2=0.99", "s=a.b=[1, 2],c.d=3")
    assert ideas_of(SPEEDRUN, typed) == (
        Idea("qk_norm", ("model.qk_norm=false",)),
        Idea("betas", ("optim.beta1=0.9", "optim.beta2=0.99")),
        Idea("s", ("a.b=[1, 2]", "c.d=3")),
    )
    assert ideas_of(SPEEDRUN, ("none",)) == ()


@pytest.mark.parametrize("typed", ["qk_norm", "model.attention_head_scale", "Muon=adamw", ""])
def test_what_is_no_idea_is_refused_with_those_there_are(typed: str) -> None:
    with pytest.raises(UsageError) as refused:
        ideas_of(SPEEDRUN, (typed,))
    assert "model.qk_norm" in refused.value.remedy


def test_two_ideas_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="same name"):
        ideas_of(SPEEDRUN, ("a=optim.beta1=0.9", "a=optim.beta1=0.8"))
