from pathlib import Path

from longhaul.config.model import ModelSection
from longhaul.config.switches import as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def rows() -> dict[str, list[str]]:
    """Default, meaning and recipes of every switch in the table."""
    cells = [line.strip("|").split(" | ") for line in as_markdown().splitlines()[2:]]
    return {name.strip(" `"): [cell.strip() for cell in rest] for name, *rest in cells}


def test_every_setting_of_the_model_is_a_switch_with_a_meaning() -> None:
    assert list(rows()) == list(ModelSection.model_fields)
    assert all(len(meaning) > 15 for _, meaning, _ in rows().values())


def test_recipes_are_named_where_they_change_a_default() -> None:
    by_name = rows()
    assert "`opt-175b`" in by_name["split_score_scale"][2]
    assert "`gpt2-124m`" not in by_name["split_score_scale"][2]
    assert by_name["layers"][2] == ""
    assert (by_name["layers"][0], by_name["window"][0]) == ("must be given", "`absent`")


def test_the_page_holds_the_table_of_today() -> None:
    assert as_markdown() in PAGE.read_text(), "put `longhaul recipe switches` into docs/model.md"
