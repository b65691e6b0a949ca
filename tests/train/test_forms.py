import torch

from fakes import FakeClock
from longhaul.config.load import load_recipe
from longhaul.config.model import ModelSection
from longhaul.core.clocks import TimeBuckets
from longhaul.model.compiling import Forms

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LENGTH = 1024


def model(*sets: str) -> ModelSection:
    return load_recipe("drill", ["model.context=1024", "model.dropout=0", *sets]).recipe.model


def seen(forms: Forms, *form: object) -> tuple[bool, bool]:
    """Whether it was new, and is afterwards."""
    before = forms.is_new(*form)
    forms.see(*form)
    return before, forms.is_new(*form)


def test_flex_attention_compiles_at_the_first_pass_of_a_form_though_the_model_does_not() -> None:
    """On a GPU, where a window or documents hide something of long sequences."""
    for sets in (("model.window=256",), ("model.document_mask=true",)):
        forms = Forms(model(*sets), GPU, compiled=False)
        assert seen(forms, 4, LENGTH, None, False) == (True, False)
        assert seen(forms, 4, LENGTH, None, True) == (True, False), "with gauges it is another one"
        assert seen(forms, 4, LENGTH, 128, False) == (True, False)
        assert not forms.is_new(4, 64, None, False), "shorter than a block"
        assert [forms.see_evaluation(LENGTH) for _ in range(2)] == [True, False]
    for settings, device in ((model(), GPU), (model("model.window=256"), CPU)):
        forms = Forms(settings, device, compiled=False)
        assert not forms.is_new(4, LENGTH, None, False)
        assert not forms.is_new(4, LENGTH, None, True)
        assert not forms.see_evaluation(LENGTH)


def test_a_compiled_model_compiles_each_form_with_gauges_and_without() -> None:
    forms = Forms(model(), CPU, compiled=True)
    assert seen(forms, 4, 64, None, False) == (True, False)
    assert seen(forms, 4, 32, None, False) == (True, False)
    assert seen(forms, 4, 64, None, True) == (True, False)
    assert forms.is_new(4, 32, None, True)


def test_compiled_blocks_compile_nothing_for_gauges() -> None:
    forms = Forms(model(), CPU, compiled=True, by_block=True)
    assert seen(forms, 4, 64, None, False) == (True, False)
    assert not forms.is_new(4, 64, None, True)


def test_other_tokens_ahead_are_another_form_of_what_is_compiled_alone() -> None:
    for compiled, gauges, is_new in (
        (True, False, True),
        (True, True, True),
        (False, False, False),
    ):
        forms = Forms(model("model.window=256"), GPU, compiled, ahead=(0.5,))
        forms.see(4, LENGTH, None, gauges)
        forms.ahead = ()
        assert forms.is_new(4, LENGTH, None, gauges) == is_new


def test_the_first_batch_of_an_evaluation_that_compiles_is_booked_so() -> None:
    clock = FakeClock()
    time_buckets = TimeBuckets(clock, "training")
    with time_buckets.track("evaluation"):
        alive = time_buckets.alive_after("compile")
        for seconds in (60.0, 2.0, 3.0):
            alive()
            clock.advance(seconds)
    assert time_buckets.drain() == {"compile": 60.0, "evaluation": 5.0}
