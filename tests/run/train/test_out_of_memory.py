"""What the next attempt computes at once after one that ran out of memory."""

from pathlib import Path

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import FakeClock
from longhaul.core.records import Decision
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.logbook.reading import read_journal
from longhaul.run.train.micro_batch import PATH, RAN_OUT
from longhaul.run.train.out_of_memory import fewer_sequences, reporting_in_own_file


def recipe(*options: str) -> Recipe:
    return load_recipe("drill", ("batch.sequences=24", "batch.stages=[]", *options)).recipe


def ledger(who: str, value: int) -> LedgerState:
    data = {"path": PATH, "value": value, "old": None}
    made = Decision(kind="set", attempt=2, step=5, time=1.0, who=who, reason="", data=data)
    return fold(LedgerState(), made)


def test_half_as_many_at_most_and_a_divisor_of_every_batch_stage() -> None:
    asked = recipe("batch.micro_sequences=24")
    assert fewer_sequences(asked, LedgerState(), 5, 24)[0] == 12
    assert fewer_sequences(asked, LedgerState(), 5, 6)[0] == 3  # what a rank of four has
    assert fewer_sequences(asked, LedgerState(), 5, 5)[0] == 2
    stages = "batch.stages=[{from_step=9, sequences=9, sequence_length=64}]"
    staged = recipe("batch.micro_sequences=3", "batch.sequence_length=64", stages)
    assert fewer_sequences(staged, LedgerState(), 5, 3)[0] == 1


def test_one_sequence_cannot_be_halved() -> None:
    fewer, why = fewer_sequences(recipe("batch.micro_sequences=1"), LedgerState(), 5, 1)
    assert fewer is None
    assert "no smaller number" in why


def test_it_is_done_once() -> None:
    asked = recipe("batch.micro_sequences=8")
    assert fewer_sequences(asked, ledger("longhaul", 8), 5, 8)[0] == 4
    fewer, why = fewer_sequences(asked, ledger(RAN_OUT, 4), 5, 4)
    assert fewer is None
    assert why.startswith("4 at once are fewer than asked for")


def test_a_rank_without_a_logbook_leaves_its_word_in_the_journal(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    reporting_in_own_file(folder, 3, 2, FakeClock())(17, {"rank": 2, "next": 4})
    [event] = read_journal(folder)
    assert (event.kind, event.attempt, event.step) == ("out-of-memory", 3, 17)
    assert event.data == {"rank": 2, "next": 4}
