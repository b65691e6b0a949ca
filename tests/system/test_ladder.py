"""`longhaul ladder` with real runs, as small as they can be."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from longhaul.core.errors import NeedsPerson
from longhaul.core.records import Event
from longhaul.logbook.folder import list_runs
from longhaul.logbook.reading import read_journal
from longhaul.plan.ladder.analysis import as_markdown
from longhaul.run.ladder.ladder import LadderRequest, run_ladder
from longhaul.supervise.ownership import left_over

TINY = """
[data]
sources = [{ name = "made-up", path = "synthetic" }]
held_out = { by = "document", fraction = 0.0005 }
[tokenizer]
kind = "bytes"
[model]
layers = 1
heads = 4
width = 32
context = 32
[batch]
sequences = 4
[optim]
lr = 0.02
[train]
steps = 20
[precision]
compute = "float32"
[checkpoint]
interval_steps = 0
[machine]
device = "cpu"
threads = 1
"""


@pytest.fixture
def request_of(
    tmp_path: Path, shared_prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LadderRequest]:
    """A ladder with three rates a size."""
    monkeypatch.setattr("longhaul.plan.ladder.search.REACH", 1)
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)

    def make(**more: object) -> LadderRequest:
        typed = {"ideas": ("none",), "folder": tmp_path / "ladder", "prepared": shared_prepared}
        return LadderRequest(str(recipe), **(typed | more))  # type: ignore[arg-type]

    return make


def counted(folder: Path, kind: str = "attempt-started") -> dict[str, int]:
    """Name of a run → its events of a kind."""
    return {
        run.name: sum(
            isinstance(record, Event) and record.kind == kind
            for record in read_journal(run, steps=False)
        )
        for run in list_runs(folder / "runs")
    }


@pytest.mark.slow
def test_a_ladder_is_interrupted_goes_on_and_ends_in_a_prediction_that_was_tried(
    request_of: Callable[..., LadderRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = request_of()
    assert typed.folder is not None
    said: list[str] = []
    sleep = time.sleep

    def interrupting(seconds: float) -> None:
        sleep(seconds)
        if len(counted(typed.folder or Path())) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("longhaul.run.ladder.ladder.time", SimpleNamespace(
            sleep=interrupting, monotonic=time.monotonic
        ))  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            run_ladder(typed, said.append)
    finished = [name for name, ends in counted(typed.folder, "finished").items() if ends]
    assert len(finished) == 2
    assert not any(left_over(run) for run in list_runs(typed.folder / "runs"))

    analysis = run_ladder(typed, said.append)
    assert analysis is not None
    after = counted(typed.folder)
    # Three sizes with two or three rates and the best one with two seeds, which may be among the
    # rates; and the last size.
    assert 11 <= len(after) <= 17
    assert [after[name] for name in finished] == [1] * len(finished)
    assert analysis.sizes[-1].size.name == "1x32"
    assert all(1.0 < loss < 6.0 for result in analysis.sizes for loss in result.losses)
    data = json.loads((typed.folder / "ladder.json").read_text())
    assert data["measured"] == analysis.measured
    assert (typed.folder / "ladder.md").read_text() == as_markdown(analysis)

    attempts = sum(after.values())
    assert run_ladder(typed, said.append) == analysis
    assert sum(counted(typed.folder).values()) == attempts


def test_a_run_that_fails_ends_the_ladder_with_its_code_and_its_log(
    request_of: Callable[..., LadderRequest], tmp_path: Path
) -> None:
    with pytest.raises(NeedsPerson) as ended:
        run_ladder(request_of(data=str(tmp_path / "nowhere.txt")), lambda _: None)
    assert ended.value.exit_code == 3
    assert "nowhere.txt" in ended.value.message
    log = re.search(r"output is in (.*?);", ended.value.remedy)
    assert log is not None
    assert Path(log[1]).is_file()


def test_a_dry_run_says_the_cost_and_starts_nothing(
    request_of: Callable[..., LadderRequest],
) -> None:
    typed, said = request_of(dry=True, ideas=("model.qk_norm",)), []
    assert run_ladder(typed, said.append) is None
    assert typed.folder is not None
    assert not typed.folder.exists()
    assert "in all about" in said[-1]
    assert "qk_norm" in said[-2]
