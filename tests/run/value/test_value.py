import json
from pathlib import Path

import pytest

from longhaul.board.value import render
from longhaul.core.errors import UsageError
from longhaul.run.value.cell import RESULT
from longhaul.run.value.value import ValueRequest, value_of

TINY = (
    "model.heads=2", "model.layers=2", "model.width=16", "model.context=32", "model.dropout=0",
    "batch.sequences=4", "batch.sequence_length=32", "batch.stages=[]", "batch.micro_sequences=4",
    "data.drop_exact_duplicates=true", 'data.held_out={by="document", fraction=0.1}',
    "optim.schedule.warmup_steps=2", "train.steps=20",
)  # fmt: skip


@pytest.fixture
def typed(tmp_path: Path) -> ValueRequest:
    """Two sources, of which b has each document twice."""
    for name, copies in (("a", 1), ("b", 2)):
        lines = [json.dumps({"text": f"{name} {n} " + name * 60}) for n in range(80)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines * copies))
    sources = ", ".join(f'{{name="{n}", path="{tmp_path / n}.jsonl"}}' for n in "ab")
    return ValueRequest(
        "drill", (*TINY, f"data.sources=[{sources}]"), sizes=(0.5, 1.0), workers=1,
        folder=tmp_path / "value", prepared=tmp_path / "prepared",
    )  # fmt: skip


def test_a_study_says_what_each_source_is_worth_and_goes_on_where_it_stopped(
    typed: ValueRequest,
) -> None:
    said: list[str] = []
    found = value_of(typed, said.append)
    assert found is not None
    value, folder = found
    assert any("24 models with 3 seeds, 1 at a time" in line for line in said)
    last = {worth.variant.name: worth.by_set for worth in value.sizes[-1].worths}
    assert set(last) == {"without a", "without b", "without drop_exact_duplicates"}
    # Nothing but a's own text can teach a model to spell it.
    assert last["without a"]["a"].low > 0
    assert last["without b"]["b"].low > 0
    assert json.loads((folder / "value.json").read_bytes())["seeds"] == 3
    cells = sorted((folder / "cells").glob(f"*/{RESULT}"))
    assert len(cells) == 24
    kept = {path: path.stat().st_mtime_ns for path in cells[1:]}
    cells[0].unlink()
    again: list[str] = []
    resumed = value_of(typed, again.append)
    assert "23 of 24 models were made before" in again
    assert resumed == found, "the same bits"
    assert {path: path.stat().st_mtime_ns for path in cells[1:]} == kept
    page = render("drill", value, "")
    assert "without drop_exact_duplicates" in page


def test_the_bill_is_said_without_training_anything(typed: ValueRequest) -> None:
    said: list[str] = []
    dry = ValueRequest(**{f: getattr(typed, f) for f in typed.__dataclass_fields__} | {"dry": True})
    assert value_of(dry, said.append) is None
    assert "models with 3 seeds" in said[-1]
    assert not dry.folder.exists()


def test_a_change_that_changes_nothing_is_not_trained(typed: ValueRequest) -> None:
    options = (*typed.options[:-1], 'data.sources=[{path="synthetic"}]')
    said: list[str] = []
    with pytest.raises(UsageError, match="no variant has other data"):
        value_of(ValueRequest("drill", options, sizes=(0.5, 1.0), prepared=typed.prepared,
                              folder=typed.folder), said.append)  # fmt: skip
    assert any("the text is the same" in line for line in said)
