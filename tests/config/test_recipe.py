import pytest

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe, change_of, source_name
from longhaul.core.errors import RecipeError


def recipe(*overrides: str) -> Recipe:
    return load_recipe("quickstart", overrides).recipe


def test_tokens_become_whole_steps_rounded_up() -> None:
    assert load_recipe("gpt2-124m").recipe.total_steps() == -(-10_000_000_000 // (480 * 1024))


def test_tokens_are_counted_over_the_stages_of_a_curriculum() -> None:
    staged = load_recipe("gpt2-124m", ["batch.sequences=480", "train.tokens=2000000",
        "optim.schedule.warmup_steps=1",
        "batch.stages=[{from_step=2, sequences=480, sequence_length=512}]"]).recipe  # fmt: skip
    first, second = 480 * 1024, 480 * 512
    assert staged.total_steps() == 2 + -(-(2_000_000 - 2 * first) // second)


def test_a_stage_holds_from_its_step_on() -> None:
    drill = load_recipe("drill").recipe
    assert [drill.batch_at(s).sequence_length for s in (0, 149, 150, 299)] == [32, 32, 64, 64]
    assert drill.block_length() == 64


def test_recipes_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        recipe().optim.lr = 1.0  # type: ignore[misc]


def test_every_setting_says_when_it_may_change() -> None:
    assert change_of("optim.lr") == "live"
    assert change_of("machine.threads") == "restart"
    assert change_of("model.width") == "never"
    assert change_of("tokenizer.kind") == "never"
    assert change_of("data.sources") == "restart"
    assert change_of("optim") is None
    assert change_of("optim.lrr") is None


def test_a_micro_batch_not_yet_found_is_no_number() -> None:
    assert recipe("batch.micro_sequences=4").micro_sequences(0) == 4
    assert recipe().micro_sequences(0) == recipe().batch.sequences
    with pytest.raises(RecipeError, match="auto has not been found"):
        recipe("batch.micro_sequences=auto").micro_sequences(0)


def test_a_source_is_called_after_its_file_and_never_by_a_secret() -> None:
    assert source_name("", "http://anna:hunter2@host/text.jsonl?sig=c2lnbmVk") == "text.jsonl"
