"""A run whose prepared text is not what was prepared any more."""

from pathlib import Path

import pytest

from fakes import SilentView
from longhaul.core.errors import DataError, ExitCode
from longhaul.data.verification import Verification
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=2", "batch.stages=[]",
    "evaluation.tokens=256", "evaluation.interval_steps=0", "checkpoint.interval_steps=5",
    "optim.schedule.warmup_steps=2", "optim.schedule.shape=constant",
)  # fmt: skip


@pytest.fixture
def train(tmp_path: Path):
    def train(steps: int) -> ExitCode:
        typed = Start(
            "drill", (*TINY, f"train.steps={steps}"), runs=tmp_path / "runs",
            prepared=tmp_path / "prepared",
        )  # fmt: skip
        return start(typed, SilentView())

    return train


def change_a_third_of_the_tokens(prepared: Path) -> Path:
    path = max(prepared.rglob("*.shard"), key=lambda shard: shard.stat().st_size)
    content = bytearray(path.read_bytes())
    begin, end = 4096, 4096 + len(content) // 3
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)
    return path


def test_training_does_not_go_on_with_changed_tokens(tmp_path: Path, train) -> None:
    assert train(5) is ExitCode.FINISHED
    changed = change_a_third_of_the_tokens(tmp_path / "prepared")
    with pytest.raises(DataError) as wrong:
        train(10)
    assert str(changed) in wrong.value.message
    assert wrong.value.exit_code == 3


def test_of_large_data_it_is_found_beside_training_and_nothing_more_is_saved(
    tmp_path: Path, train, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(5) is ExitCode.FINISHED
    change_a_third_of_the_tokens(tmp_path / "prepared")
    begin, ask = Verification.begin, Verification.raise_if_wrong

    def begin_beside(self, say) -> None:
        self._at_once = 0
        begin(self, say)

    def ask_at_its_end(self) -> None:
        self._thread.join()
        ask(self)

    monkeypatch.setattr(Verification, "begin", begin_beside)
    monkeypatch.setattr(Verification, "raise_if_wrong", ask_at_its_end)
    with pytest.raises(DataError, match="not those that were prepared"):
        train(20)
    assert [c.step for c in catalogue(tmp_path / "runs" / "drill" / "checkpoints")] == [5]
