from pathlib import Path

from longhaul.config.model import ModelSection
from longhaul.config.switches import as_markdown, switches

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def test_every_setting_of_the_model_is_a_switch_with_a_meaning() -> None:
    rows = list(switches())
    assert [row.name for row in rows] == list(ModelSection.model_fields)
    assert all(len(row.meaning) > 15 for row in rows)


def test_recipes_are_named_where_they_change_a_default() -> None:
    by_name = {row.name: row for row in switches()}
    assert "opt-175b" in by_name["split_score_scale"].recipes
    assert "gpt2-124m" not in by_name["split_score_scale"].recipes
    assert by_name["layers"].recipes == ()
    assert (by_name["layers"].default, by_name["window"].default) == ("", "absent")


def test_the_page_holds_the_table_of_today() -> None:
    assert as_markdown() in PAGE.read_text(), "put `longhaul recipe switches` into docs/model.md"
