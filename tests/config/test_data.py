from pathlib import Path

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError

MIXED = """
[data]
sources = [{ path = "web.txt", weight = 3.0 }, { path = "books.txt" }]
stages = [{ from_draw = 100, weights = { "books.txt" = 4.0, "web.txt" = 0.0 } }]
[model]
layers = 1
heads = 2
width = 8
context = 16
[batch]
sequences = 4
[optim]
lr = 1e-3
[train]
steps = 10
"""


def load(folder: Path, *overrides: str, **replaced: str):
    text = MIXED
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "mine.toml").write_text(text)
    return load_recipe(str(folder / "mine.toml"), list(overrides)).recipe


def test_stages_of_the_mixture_are_read_from_a_recipe(tmp_path: Path) -> None:
    (stage,) = load(tmp_path).data.stages
    assert (stage.from_draw, stage.weights) == (100, {"books.txt": 4.0, "web.txt": 0.0})


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ('[{ from_draw = 0, weights = { "web.txt" = 1.0 } }]', "0 is not > 0"),
        ('[{ from_draw = 9, weights = { "web.txt" = -1.0 } }]', "-1.0 is not"),
        ("[{ from_draw = 9, weights = {} }]", "data.stages.0.weights"),
        (
            '[{ from_draw = 9, weights = { "wbe" = 1.0 } }]',
            "no source is called wbe; there are web.txt, books.txt",
        ),
        (
            '[{ from_draw = 9, weights = { "web.txt" = 0.0, "books.txt" = 0.0 } }]',
            "every source has weight 0",
        ),
        (
            '[{ from_draw = 9, weights = { "web.txt" = 1.0 } },'
            ' { from_draw = 9, weights = { "web.txt" = 2.0 } }]',
            "two stages begin at the same draw",
        ),
    ],
)
def test_stages_that_cannot_be_meant_are_refused(tmp_path: Path, stages: str, told: str) -> None:
    lines = MIXED.splitlines()
    lines[3] = f"stages = {stages}"
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(tmp_path / "mine.toml"), [])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["tokenizer.kind=numbers"], "kind `numbers` needs to know how many numbers there are"),
        (["tokenizer.kind=bytes", "tokenizer.vocab_size=300"], "only `bpe` and `numbers` take"),
        (["data.sources.0.format=nanogtp"], "did you mean 'nanogpt'?"),
    ],
)
def test_tokens_made_elsewhere_need_settings_that_fit(
    tmp_path: Path, overrides: list[str], told: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, *overrides)
    assert told in str(caught.value)
    given = load(tmp_path, "tokenizer.kind=numbers", "tokenizer.vocab_size=50257")
    assert given.tokenizer.vocab_size == 50257
