"""Real ranks, one of which runs out of memory: once a smaller micro-batch, then a person."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork_server import SERVER, Process
from longhaul.core.records import Decision, Event, Record, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.supervise.ownership import left_over
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "train.steps=8", "optim.schedule.warmup_steps=2", "optim.schedule.decay_steps=8",
    "model.dropout=0", "model.width=16", "model.layers=1", "model.context=32",
    "batch.sequences=16", "batch.micro_sequences=8", "batch.sequence_length=16", "batch.stages=[]",
    "checkpoint.interval_steps=3", "checkpoint.snapshot_interval_steps=0",
    "evaluation.interval_steps=0", "evaluation.tokens=256",
)  # fmt: skip
ON_CPU = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"


class Room:
    """A folder to train in; what is started is ended."""

    def __init__(self, path: Path, prepared: Path) -> None:
        self.path, self.prepared = path, prepared
        self.folder = RunFolder(path / "drill")
        self.started: list[Process] = []

    def train(
        self, short: dict[str, object], *options: str, nproc: int = 2
    ) -> tuple[int, str, list[Record]]:
        """Train to the end where memory is short: exit code, output, journal."""
        sets = [part for option in (*TINY, *options) for part in ("--set", option)]
        environment = {name: str(value) for name, value in short.items()}
        process = SERVER.start(
            [str(Path(__file__).with_name("short_of_memory.py")), "train",
             "drill", *sets, "--nproc", str(nproc), "--runs-dir", str(self.path),
             "--prepared-dir", str(self.prepared)],
            self.path, os.environ | {"SHORT_RANK": "-1"} | environment,
        )  # fmt: skip
        self.started.append(process)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output, list(read_journal(self.folder))

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        assert not left_over(self.folder)


@pytest.fixture
def room(tmp_path: Path, shared_prepared: Path) -> Iterator[Room]:
    made = Room(tmp_path, shared_prepared)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, shared_prepared: Path) -> list[float]:
    """Losses of one process that has memory enough."""
    made = Room(tmp_path_factory.mktemp("undisturbed"), shared_prepared)
    code, output, records = made.train({}, nproc=1)
    made.close()
    assert code == 0, output
    return losses(records)


def losses(records: list[Record]) -> list[float]:
    last = {record.step: record.loss for record in records if isinstance(record, StepRecord)}
    return [last[step] for step in sorted(last)]


def decided(records: list[Record]) -> list[tuple[str, object, str]]:
    ours = [r for r in records if isinstance(r, Decision) and r.kind in ("set", "unset")]
    return [(decision.kind, decision.data.get("value"), decision.who) for decision in ours]


def ran_out(records: list[Record]) -> list[Event]:
    return [r for r in records if isinstance(r, Event) and r.kind == "out-of-memory"]


@pytest.mark.parametrize(("nproc", "rank", "says"), [(2, 1, ""), (1, 0, ON_CPU)])
def test_a_rank_that_runs_out_computes_half_as_much_at_once_from_then_on(
    room: Room, undisturbed: list[float], nproc: int, rank: int, says: str
) -> None:
    short = {"SHORT_RANK": rank, "SHORT_ABOVE": 4, "SHORT_FROM": 5, "SHORT_SAYS": says}
    code, output, records = room.train(short, nproc=nproc)
    assert code == 0, output
    [event] = ran_out(records)
    assert (event.data["rank"], event.step) == (rank, 5)
    assert (event.data["micro_sequences"], event.data["next"]) == (8, 4)
    weights = next(held for held in event.data["held"] if held["name"] == "weights")
    assert weights["now"] == weights["before"] > 0
    assert decided(records) == [("set", 4, "out-of-memory")]
    assert "fewer sequences at once are tried" in output
    assert "4 sequences of 16 at once" in output
    # The same global batch: nothing but the order of sums is another.
    assert losses(records) == pytest.approx(undisturbed, rel=1e-6)


def test_a_second_time_a_person_must_look_and_no_crash_forgets_the_first(room: Room) -> None:
    short = {"SHORT_RANK": 0, "SHORT_ABOVE": 2, "SHORT_FROM": 2}
    code, output, records = room.train(short, nproc=1)
    assert code == 17, output
    assert "fewer than asked for already" in output
    assert "→ free memory" in output
    assert [event.data["next"] for event in ran_out(records)] == [4, None]
    assert decided(records) == [("set", 4, "out-of-memory")]
    code, output, records = room.train({"SHORT_RANK": 0, "SHORT_ABOVE": 4}, nproc=1)
    assert code == 0, output  # the decision holds: eight at once would not have fitted
    assert len(ran_out(records)) == 2


def test_a_number_that_a_person_gives_afterwards_wins(room: Room) -> None:
    assert room.train({"SHORT_RANK": 0, "SHORT_ABOVE": 4}, "train.steps=2", nproc=1)[0] == 0
    code, output, records = room.train({}, "batch.micro_sequences=16", nproc=1)
    assert code == 0, output
    assert decided(records) == [("set", 4, "out-of-memory"), ("unset", None, "longhaul")]


def test_ranks_that_measure_together_do_not_wait_for_one_that_ran_out(room: Room) -> None:
    short = {"SHORT_RANK": 1, "SHORT_ABOVE": 1}
    code, output, records = room.train(short, "batch.micro_sequences=auto", "train.steps=3")
    assert code == 0, output
    assert [event.data["measured"] for event in ran_out(records)] == [2]
    assert decided(records) == [("set", 1, "longhaul")]


EVALUATES = (
    "train.steps=4", "batch.micro_sequences=8", "model.context=16", "evaluation.interval_steps=2",
)  # fmt: skip
IN_EVALUATION = {"SHORT_IN": "evaluation", "SHORT_ABOVE": 2}


def evaluated(records: list[Record]) -> list[float]:
    found = [r for r in records if isinstance(r, Event) and r.kind == "evaluation"]
    return [float(event.data["loss"]) for event in found]


@pytest.fixture(scope="module")
def evaluated_undisturbed(
    tmp_path_factory: pytest.TempPathFactory, shared_prepared: Path
) -> list[float]:
    made = Room(tmp_path_factory.mktemp("evaluated"), shared_prepared)
    code, output, records = made.train({}, *EVALUATES, nproc=1)
    made.close()
    assert code == 0, output
    return evaluated(records)


@pytest.mark.parametrize(("nproc", "layout"), [(1, "replicate=1"), (2, "replicate=2")])
def test_an_evaluation_that_runs_out_is_made_with_half_as_many_at_once(
    room: Room, evaluated_undisturbed: list[float], nproc: int, layout: str
) -> None:
    """Replicas do not wait for each other within a pass, so the attempt goes on."""
    short = {"SHORT_RANK": nproc - 1, **IN_EVALUATION}
    code, output, records = room.train(short, *EVALUATES, f"parallel.{layout}", nproc=nproc)
    assert code == 0, output
    assert not ran_out(records)
    assert {record.attempt for record in records} == {1}
    assert evaluated(records) == pytest.approx(evaluated_undisturbed, rel=1e-5)
    if nproc == 1:
        assert "(2 sequences at once; memory ran out with 8)" in output


@pytest.mark.parametrize(
    "layout",
    [
        ("parallel.shard=2",),
        *(
            pytest.param(layout, marks=pytest.mark.slow)
            for layout in (
                ("parallel.tensor=2",),
                ("parallel.pipeline=2", "parallel.replicate=1", "model.layers=2"),
            )
        ),
    ],
)
def test_ranks_that_share_a_pass_evaluate_half_as_many_at_once_from_the_next_attempt_on(
    room: Room, layout: tuple[str, ...]
) -> None:
    options = [*EVALUATES, *layout]
    code, output, records = room.train({"SHORT_RANK": 1, **IN_EVALUATION}, *options)
    assert code == 0, output
    told = [(event.data["path"], event.data["next"]) for event in ran_out(records)]
    assert told == [("evaluation.sequences", 4), ("evaluation.sequences", 2)]
    assert decided(records) == [("set", 4, "out-of-memory"), ("set", 2, "out-of-memory")]
    assert "the next attempt evaluates 2 sequences at once" in output
    assert len(evaluated(records)) == 2
    # Training was not touched: its micro-batch is as asked for.
    assert all(d.data["path"] == "evaluation.sequences" for d in records if is_set(d))


def is_set(record: Record) -> bool:
    return isinstance(record, Decision) and record.kind == "set"
