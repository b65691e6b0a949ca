"""Which prepared folder a recipe finds again, once it may clean."""

import pytest

from longhaul.core.errors import RecipeError
from longhaul.data.prepare import _decisive, prepared_folder


def name(make, tmp_path, **settings):
    (tmp_path / "text.txt").write_text("Some text.\n")
    recipe = make(tmp_path / "text.txt", **settings)
    return prepared_folder(recipe, tmp_path / "prepared", print).name


def test_settings_that_are_not_in_use_leave_it_as_it_was(recipe_for, tmp_path):
    recipe = recipe_for(tmp_path / "text.txt", clean={"whitespace": False}, filters={"words": None})
    settings = _decisive(recipe.data)
    assert settings.keys() == {
        "sources",
        "drop_exact_duplicates",
        "max_broken_fraction",
        "held_out",
    }
    assert settings["sources"][0].keys() == {
        "name", "path", "weight", "text_field", "format", "sha256",
    }  # fmt: skip


def test_each_that_is_in_use_makes_another(recipe_for, tmp_path):
    names = [
        name(recipe_for, tmp_path),
        name(recipe_for, tmp_path, clean={"whitespace": True}),
        name(recipe_for, tmp_path, filters={"gopher": True}),
        name(recipe_for, tmp_path, filters={"gopher": True, "words": (1, 9)}),
        name(recipe_for, tmp_path, source={"adapter": "mail"}),
        name(recipe_for, tmp_path, source={"filtered": False}, filters={"gopher": True}),
    ]
    assert len(set(names)) == len(names)


def test_the_content_of_a_list_counts(recipe_for, tmp_path):
    listed = tmp_path / "domains.txt"
    listed.write_text("example.com\n")
    filters = {"blocked_domains": str(listed)}
    before = name(recipe_for, tmp_path, filters=filters)
    listed.write_text("example.org\n")
    assert name(recipe_for, tmp_path, filters=filters) != before
    listed.unlink()
    with pytest.raises(RecipeError, match=r"blocked_domains: .*: no such file"):
        name(recipe_for, tmp_path, filters=filters)
