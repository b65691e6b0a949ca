import tomllib
from pathlib import Path

import pytest

from longhaul.config.load import (
    as_toml,
    leaves,
    load_recipe,
    parse_override,
    recipe_from_values,
    shipped_recipes,
    with_overrides,
)
from longhaul.core.errors import RecipeError

SMALL = """
[data]
sources = [{ path = "synthetic" }]
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


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def problems(recipe: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name).recipe
    assert recipe.name == name
    assert recipe.summary


def test_every_problem_is_told_at_once_with_path_value_and_remedy() -> None:
    told = problems("quickstart", "optim.lrr=1", "model.heads=7")
    assert "optim.lrr: unknown setting; did you mean optim.lr?" in told
    assert "model.heads: 7 heads do not divide model.width 192; 6 would" in told
    assert "has 2 problems" in told


def test_a_problem_names_file_and_line(tmp_path: Path) -> None:
    recipe = write(tmp_path, "mine.toml", SMALL.replace("lr = 1e-3", "lr = -0.1"))
    assert "optim.lr: -0.1 is not > 0.0 (mine.toml:12)" in problems(recipe)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.layers=1.5", "model.layers: 1.5 is not a whole number"),
        ("model.layers='two'", "model.layers: 'two' is not a whole number"),
        ("model.bias=1", "model.bias: 1 is not true or false"),
        ("model.norm=rmsnrm", "did you mean 'rmsnorm'?"),
        ("optim.beta1=1", "optim.beta1: 1 is not < 1"),
        ("optim.lr=inf", "optim.lr: inf is not a finite number"),
        ("lr=1", "did you mean optim.lr?"),
        ("data.sources=[]", "data.sources: () is not long enough"),
        ("data.sources.0.pth='x'", "data.sources.0.pth: unknown setting"),
        ("model=3", "model: 3 is not a table of settings"),
        ("batch.sequence_length=32", "batch.sequence_length: 32 does not fit model.context 16"),
        ("batch.micro_sequences=3", "batch.micro_sequences: 3 does not divide"),
        ("batch.micro_sequences=0", "batch.micro_sequences: 0 is not ≥ 1"),
        (
            "batch.micro_sequences=aut",
            "batch.micro_sequences: 'aut' is not a whole number or 'auto'",
        ),
        ("batch.micro_sequences=1.5", "batch.micro_sequences: 1.5 is not a whole number or 'auto'"),
        ("train.tokens=5", "give train.steps or train.tokens, not both"),
        ("optim.loss_scale.initial=0.5", "0.5 does not lie between the floor 1 and"),
        ("optim.schedule.warmup_steps=10", "10 warm-up steps leave nothing of 10 steps"),
        ("tokenizer.kind=file", "tokenizer.path: kind `file` needs the path"),
        ("tokenizer.vocab_size=100", "100 cannot hold the 256 bytes"),
        ("model.width=6", "rotary positions need an even head width"),
        ("model.kv_heads=3", "3 heads of keys and values do not divide model.heads"),
    ],
)
def test_each_kind_of_mistake_is_explained(tmp_path: Path, override: str, told: str) -> None:
    assert told in problems(write(tmp_path, "mine.toml", SMALL), override)


def test_a_run_without_an_end_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace("steps = 10", "")
    assert "the run has no end" in problems(write(tmp_path, "mine.toml", text))
    told = problems(write(tmp_path, "mine.toml", text + "max_hours = 1"))
    assert "a cosine schedule needs its length" in told


def test_missing_sections_are_told_together(tmp_path: Path) -> None:
    told = problems(write(tmp_path, "mine.toml", "[model]\nlayers = 0\nwidth = 8"))
    for path in ("model.layers", "model.heads", "model.context", "batch", "optim", "data", "train"):
        assert f"{path}: " in told


def test_a_child_extends_its_parent_and_origins_follow(tmp_path: Path) -> None:
    write(tmp_path, "parent.toml", SMALL)
    child = write(tmp_path, "child.toml", 'extends = "parent.toml"\n[optim]\nlr = 5e-4\n')
    resolved = load_recipe(child, ["train.steps=7"])
    assert (resolved.recipe.name, resolved.recipe.optim.lr) == ("child", 5e-4)
    assert resolved.recipe.model.width == 8
    assert resolved.origins["optim.lr"] == "child.toml:3"
    assert resolved.origins["model.width"] == "parent.toml:7"
    assert resolved.origins["train.steps"] == "--set train.steps=7"


def test_extending_in_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", 'extends = "b.toml"')
    b = write(tmp_path, "b.toml", 'extends = "a.toml"')
    assert "goes round in a circle" in problems(b)


@pytest.mark.parametrize("name", ["\N{GRINNING FACE}", 'a "word"', "back\\slash", "größe"])
def test_a_value_is_written_so_that_toml_reads_it_back(name: str) -> None:
    value = [{"name": name, name: [1, 0.5, True]}]
    assert tomllib.loads(f"value = {as_toml(value)}") == {"value": value}


def test_own_text_replaces_every_source() -> None:
    sources = load_recipe("drill", data="my.txt").recipe.data.sources
    assert [source.path for source in sources] == ["my.txt"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("quickstrat", "did you mean quickstart?"),
        ("no/such.toml", "no such file"),
    ],
)
def test_an_unknown_recipe_names_the_nearest(name: str, told: str) -> None:
    assert told in problems(name)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[model\n", b""])
def test_a_file_that_is_no_recipe_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert problems(str(path))


@pytest.mark.parametrize("text", ["optim.lr", "=3", ""])
def test_an_override_without_path_or_value_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="not of the form"):
        parse_override(text)


def test_override_values_are_toml_or_else_text() -> None:
    assert parse_override("a.b=3e-4") == ("a.b", 3e-4)
    assert parse_override("a=true") == ("a", True)
    assert parse_override("a=bf16") == ("a", "bf16")
    assert parse_override("a=[1, 2]") == ("a", [1, 2])


def test_overrides_leave_the_recipe_as_it_was_and_refuse_nonsense() -> None:
    recipe = load_recipe("quickstart").recipe
    before = recipe.optim.lr
    assert with_overrides(recipe, {"optim.lr": 1e-5}).optim.lr == 1e-5 != before
    assert recipe.optim.lr == before
    with pytest.raises(RecipeError, match=r"did you mean optim\.lr"):
        with_overrides(recipe, {"optim.lrr": 1})
    with pytest.raises(RecipeError, match="is not > 0"):
        with_overrides(recipe, {"optim.lr": -1.0})


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_a_recipe_survives_its_own_dump(name: str) -> None:
    recipe = load_recipe(name).recipe
    assert recipe_from_values(recipe.model_dump(mode="json")) == recipe


def test_leaves_cover_lists_of_tables() -> None:
    found = dict(leaves({"a": {"b": 1}, "c": [{"d": 2}, {"d": 3}], "e": [1, 2]}))
    assert found == {"a.b": 1, "c.0.d": 2, "c.1.d": 3, "e": [1, 2]}


def test_a_mask_of_documents_without_their_ends_is_refused(tmp_path: Path) -> None:
    recipe = write(tmp_path, "mine.toml", SMALL)
    told = problems(recipe, "model.document_mask=true", "tokenizer.end_of_text=false")
    assert "model.document_mask: documents are told apart by the end-of-text token" in told
