"""A run whose mixture is changed when it is started again."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fakes import SilentView
from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError, ExitCode, RecipeError
from longhaul.core.records import Decision
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import open_dataset
from longhaul.logbook.description import decision_in_words
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.diagnose.saved_batch import documents_at
from longhaul.run.train.launch import Start, start

TINY = (
    'data.held_out={by="tail", fraction=0.05}', "model.width=16", "model.layers=1",
    "model.context=32", "data.drop_exact_duplicates=true", "model.dropout=0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.stages=[]",
    "batch.micro_sequences=4", "evaluation.tokens=256", "evaluation.interval_steps=0",
    "checkpoint.interval_steps=5", "optim.schedule.warmup_steps=2",
    "optim.schedule.shape=constant", "monitor.gauge_interval_steps=0",
)  # fmt: skip
SLOT = re.compile(r"slot \d+: (\w+), epoch (\d+), tokens (\d+)–")


class Mixed:
    """A run on some of the sources a, b and c."""

    def __init__(self, place: Path) -> None:
        self.place, self.said, self.read = place, [], []
        for name in "abc":
            lines = (json.dumps({"text": f"{name} {n} " + name * 60}) for n in range(60))
            (place / f"{name}.jsonl").write_text("\n".join(lines))

    def options(self, steps: int, *more: str, **weights: float) -> tuple[str, ...]:
        sources = ", ".join(
            f'{{name="{name}", path="{self.place / name}.jsonl", weight={weight}}}'
            for name, weight in weights.items()
        )
        return (*TINY, f"data.sources=[{sources}]", f"train.steps={steps}", *more)

    def train(self, steps: int, *more: str, **weights: float) -> None:
        view = SilentView()
        view.say = self.said.append
        options = self.options(steps, *more, **weights)
        typed = Start("drill", options, runs=self.place / "runs", prepared=self.place / "prepared")
        assert start(typed, view) is ExitCode.FINISHED

    def blocks(self, first: int, last: int) -> list[tuple[str, int]]:
        """Source and block of every sequence of these steps, all read in the first epoch."""
        found = []
        for step in range(first, last + 1):
            lines = "\n".join(documents_at("drill", self.place / "runs", step, None))
            for name, epoch, begin in SLOT.findall(lines):
                assert epoch == "0"
                found.append((name, int(begin) // 32))
        return found

    def decisions(self) -> list[Decision]:
        journal = read_journal(RunFolder(self.place / "runs" / "drill"))
        return [r for r in journal if isinstance(r, Decision) and r.kind == "mixture"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mixed:
    mixed, read = Mixed(tmp_path), BatchReader.read

    def noting(self, request, following=None):
        slots = self.slots(request).tolist()
        mixed.read += [(self.plan.names[number], begin // 32) for number, _, begin in slots]
        return read(self, request, following)

    monkeypatch.setattr(BatchReader, "read", noting)
    return mixed


def test_weights_and_sources_change_and_each_source_goes_on_where_it_was(run: Mixed) -> None:
    run.train(5, a=1, b=1)
    run.train(10, a=3, b=1, c=4)
    run.train(15, b=1, c=1)
    run.train(20, a=1, b=1, c=1)
    drawn = run.blocks(1, 20)
    assert drawn == run.read, "what was trained on is what the log says"
    assert {name for name, _ in drawn[:20]} == {"a", "b"}
    assert sum(name == "c" for name, _ in drawn[20:40]) == pytest.approx(10, abs=1)
    assert {name for name, _ in drawn[40:60]} == {"b", "c"}
    text = max((run.place / "prepared").glob("*/dataset.json"), key=lambda p: p.stat().st_mtime)
    dataset = open_dataset(text.parent)
    reader = BatchReader(dataset, load_recipe("drill", run.options(20, a=1, b=1, c=1)).recipe)
    reader.close()
    for number, source in enumerate(dataset.sources):
        own = [block for name, block in drawn if name == source.name]
        count = reader.plan.block_counts[number]
        assert own == reader.order._permutation(number, 0)(np.arange(count))[: len(own)].tolist()
    first, second, third = run.decisions()
    assert (first.data["from_draw"], second.data["from_draw"], third.data["from_draw"]) == (
        20, 40, 60,
    )  # fmt: skip
    assert first.data["old"] == {"a": 0.5, "b": 0.5}
    assert first.data["new"] == {"a": 0.375, "b": 0.125, "c": 0.5}
    assert "from draw 40 on: a 37.50% → 0.00%" in decision_in_words(second)
    assert any("c 0." in line and "read by step 20" in line for line in run.said)


def test_what_was_not_asked_for_is_no_change_of_the_mixture(run: Mixed) -> None:
    run.train(5, a=1, b=1)
    run.train(8, "optim.lr=0.001", b=1, a=1)  # named the other way round
    assert not run.decisions()


def test_a_stage_that_is_added_holds_from_its_draw_on(run: Mixed) -> None:
    run.train(5, a=1, b=1)
    run.train(10, "data.stages=[{from_draw=28, weights={a=0.0}}]", a=1, b=1)
    drawn = run.blocks(6, 10)
    assert {name for name, _ in drawn[:8]} == {"a", "b"}
    assert {name for name, _ in drawn[8:]} == {"b"}


def test_a_source_that_became_another_is_refused(run: Mixed) -> None:
    run.train(5, a=1, b=1)
    with pytest.raises(RecipeError, match=r"data\.sources"):
        run.train(10, c=1)
    half = (run.place / "a.jsonl").read_text().splitlines()[:30]
    (run.place / "c.jsonl").write_text("\n".join(half))
    with pytest.raises(DataError, match="a: prepared beside the other sources"):
        run.train(10, c=1, a=1, b=1)
    changed = run.options(10, b=1)[-2].replace("b.jsonl", "c.jsonl")
    with pytest.raises(RecipeError, match=r"data\.sources \(b\)"):
        run.train(10, changed, a=1, b=1)


def test_a_run_that_outlives_its_text_is_refused_at_its_start(run: Mixed) -> None:
    options = run.options(500, a=1, b=1)
    sources = options[-2].replace("weight=1}", "weight=1, max_epochs=2}")
    with pytest.raises(DataError, match="500 steps, and at step"):
        run.train(500, sources, a=1, b=1)
