"""Limits of the judgement."""

from pydantic import BaseModel

from longhaul.config.diagnose import DiagnoseSection
from longhaul.config.switches import meanings


def tables(model: type[BaseModel]):
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from tables(field.annotation)
        else:
            yield model, name, field


def test_one_limit_may_be_given_alone():
    for table in ("loss_spike", "gradient_spike"):
        section = DiagnoseSection.model_validate({table: {"deviations": 6.0}})
        assert getattr(section, table).deviations == 6.0


def test_every_limit_is_told_and_may_change_on_a_live_run():
    for table, name, field in tables(DiagnoseSection):
        assert meanings(table)[name], name
        assert field.json_schema_extra == {"change": "live"}, name
