"""A run of several real processes on gloo, as torchrun or srun would start them."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fork_server import SERVER
from longhaul.core.clocks import RealClock
from longhaul.core.records import Decision, Event, Record, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import submit
from small_runs import FEW_HELD_OUT

DEADLINE_S = 120.0
RECIPE = (
    "--set", FEW_HELD_OUT,
    "--set", "train.steps=24",
    "--set", "optim.schedule.warmup_steps=2",
    "--set", "optim.schedule.decay_steps=24",
    "--set", "model.dropout=0",
    "--set", "model.width=32",
    "--set", "model.layers=1",
    "--set", "batch.sequences=8",
    "--set", "batch.micro_sequences=2",
    "--set", "batch.stages=[]",
    "--set", "checkpoint.interval_steps=8",
    "--set", "evaluation.interval_steps=10",
    "--set", "evaluation.tokens=1024",
    "--set", "data.sources.0.weight=1",
)  # fmt: skip


class Crew:
    """The ranks of one start; the test ends whatever they leave."""

    def __init__(self, folder: Path, prepared: Path, size: int, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.outputs = [folder / f"rank-{rank}.txt" for rank in range(size)]
        command = [
            "-m", "longhaul", "train", "drill", *RECIPE, *options,
            "--runs-dir", str(folder), "--prepared-dir", str(prepared),
        ]  # fmt: skip
        self.ranks = []
        for rank, output in enumerate(self.outputs):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            environment = os.environ | place | {"COLUMNS": "200"}
            with output.open("w") as sink:
                self.ranks.append(SERVER.start(command, folder, environment, sink))

    def wait(self) -> list[int]:
        """Exit codes, once all have ended."""
        until = time.monotonic() + DEADLINE_S
        try:
            return [rank.wait(max(0.1, until - time.monotonic())) for rank in self.ranks]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"some ranks did not end; {self.said()}") from None

    def wait_for(self, what: str, seen: Callable[[Record], bool]) -> None:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            if any(map(seen, records(self.folder))):
                return
            assert self.ranks[0].poll() is None, f"{what} did not come; {self.said()}"
            time.sleep(0.02)
        raise AssertionError(f"{what} did not come; {self.said()}")

    def said(self) -> str:
        return "\n".join(f"rank {n}: {o.read_text()}" for n, o in enumerate(self.outputs))

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


@pytest.fixture
def crew(shared_prepared: Path) -> Iterator[Callable[..., Crew]]:
    made: list[Crew] = []

    def start(folder: Path, size: int, *options: str) -> Crew:
        made.append(Crew(folder, shared_prepared, size, *options))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def records(folder: Path) -> list[Record]:
    run = RunFolder(folder / "drill")
    return list(read_journal(run)) if run.journal.is_dir() else []


def losses(folder: Path) -> dict[int, float]:
    """By step, what the last attempt at it had."""
    return {r.step: r.loss for r in records(folder) if isinstance(r, StepRecord)}


def validation(folder: Path) -> float:
    found = [r for r in records(folder) if isinstance(r, Event) and r.kind == "finished"]
    return float(found[-1].data["loss"])


def is_step(least: int) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, StepRecord) and record.step >= least


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, shared_prepared: Path) -> Path:
    """The same run by one process, which the runs of many are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    single = Crew(folder, shared_prepared, 1)
    assert single.wait() == [0], single.said()
    return folder


def test_a_run_stops_and_goes_on_with_other_numbers_of_processes(
    tmp_path: Path, crew: Callable[..., Crew], alone: Path
) -> None:
    first = crew(tmp_path, 2)
    first.wait_for("step 5", is_step(5))
    # One process alone hears it, and all stop at the same step, saved.
    first.ranks[1].send_signal(signal.SIGTERM)
    assert first.wait() == [16, 16], first.said()
    reached = max(losses(tmp_path))
    assert (tmp_path / "drill" / "checkpoints" / f"step-{reached}").is_dir()

    # 8 sequences are not a multiple of 3: one rank makes micro-batches of less weight.
    second = crew(tmp_path, 3, "--set", f"train.steps={reached + 3}")
    assert second.wait() == [0] * 3, second.said()
    third = crew(tmp_path, 1, "--set", "train.steps=24")
    assert third.wait() == [0], third.said()
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)
    assert validation(tmp_path) == pytest.approx(validation(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        (3, ()),  # of 8 sequences; one rank has one that counts nowhere
        pytest.param(2, ("--set", "parallel.tensor=2"), marks=pytest.mark.slow),
        pytest.param(4, ("--set", "parallel.pipeline=2"), marks=pytest.mark.slow),
    ],
    ids=["replicas", "tensor", "stages"],
)
def test_ranks_divide_the_loss_of_parts_of_documents_by_all_that_counts(
    tmp_path: Path, crew: Callable[..., Crew], size: int, layout: tuple[str, ...]
) -> None:
    masked = ("--set", "data.loss_from=' '", "--set", "train.steps=6", "--set", "model.layers=2")
    for name, ranks, options in (("one", 1, masked), ("many", size, (*masked, *layout)),
                                 ("all", 1, (*masked, "--set", "data.loss_from=''"))):  # fmt: skip
        (tmp_path / name).mkdir()
        started = crew(tmp_path / name, ranks, *options)
        assert started.wait() == [0] * ranks, started.said()
    one, many = losses(tmp_path / "one"), losses(tmp_path / "many")
    assert many == pytest.approx(one, rel=1e-5)
    assert validation(tmp_path / "many") == pytest.approx(validation(tmp_path / "one"), rel=1e-5)
    assert one != pytest.approx(losses(tmp_path / "all"), rel=1e-3), "something is left out"


@pytest.mark.slow  # of one process: test_survival.py; from memory: test_surviving.py
def test_after_a_kill_the_same_processes_go_on_bit_by_bit(
    tmp_path: Path, crew: Callable[..., Crew]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    dropout = ("--set", "model.dropout=0.1")
    undisturbed = crew(whole, 2, *dropout)
    assert undisturbed.wait() == [0, 0], undisturbed.said()

    first = crew(killed, 2, *dropout)
    first.wait_for("step 12", is_step(12))
    first.ranks[1].kill()
    # Rank 0 does not wait for ever for who is dead, and says what happened.
    codes = first.wait()
    assert codes[0] == 16, first.said()
    assert "rank 0 of 2 waited for the others" in first.outputs[0].read_text()
    again = crew(killed, 2, *dropout)
    assert again.wait() == [0, 0], again.said()
    assert losses(killed) == losses(whole)
    ends = [
        tensor_bytes(folder / "drill" / "checkpoints" / "step-24") for folder in (whole, killed)
    ]
    assert ends[0] == ends[1]


def tensor_bytes(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}


def test_all_ranks_go_back_and_change_settings_together(
    tmp_path: Path, crew: Callable[..., Crew]
) -> None:
    long = (
        "--set", "train.steps=4000",
        "--set", "checkpoint.interval_steps=auto",
        "--set", "checkpoint.snapshot_interval_steps=4",
        "--set", "optim.schedule.shape=constant",
    )  # fmt: skip
    started = crew(tmp_path, 2, *long)
    started.wait_for("step 9", is_step(9))

    def request(kind: str, data: dict[str, object]) -> None:
        submit(
            RunFolder(tmp_path / "drill"), kind, data, who="test", reason="test", clock=RealClock()
        )

    request("rollback", {"to": 8})
    started.wait_for("the rollback", lambda r: isinstance(r, Event) and r.kind == "rolled-back")
    request("set", {"path": "optim.lr", "value": 1e-3})
    started.wait_for(
        "a step at the new rate", lambda r: isinstance(r, StepRecord) and r.learning_rate == 1e-3
    )
    for rank in started.ranks:
        rank.send_signal(signal.SIGTERM)
    assert started.wait() == [16, 16], started.said()
    told = records(tmp_path)
    (back,) = [r for r in told if isinstance(r, Event) and r.kind == "rolled-back"]
    assert (back.data["to"] <= 8, back.data["where"]) == (True, "memory")
    after = [r for r in told[told.index(back) :] if isinstance(r, StepRecord)]
    assert [r.step for r in after] == [back.step + 1 + n for n in range(len(after))]
    (changed,) = [r for r in told if isinstance(r, Decision) and r.kind == "set"]
    assert all(r.learning_rate == (1e-3 if r.step > changed.step else 2e-3) for r in after)
    # A rank that did not go back, or has another rate, would have spoilt its shards: the loss of
    # the next start is that of all of them together.
    last = after[-1]
    again = crew(tmp_path, 1, *long, "--set", f"train.steps={last.step + 1}")
    assert again.wait() == [0], again.said()
    assert losses(tmp_path)[last.step + 1] == pytest.approx(last.loss, abs=0.3)


def test_rank_0_that_ends_before_the_others_came_tells_them(
    tmp_path: Path, crew: Callable[..., Crew], alone: Path
) -> None:
    """srun ends nobody when one task ends; they would wait for rank 0 for ever."""
    wrong = crew(tmp_path, 2, "--set", "model.width=banana")
    assert wrong.wait() == [2, 2], wrong.said()
    assert "model.width" in wrong.outputs[0].read_text()
    finished = crew(alone, 2)
    assert finished.wait() == [0, 0], finished.said()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
@pytest.mark.parametrize("way", ["shard", "tensor"])
def test_compiled_blocks_train_alike_with_no_graph_break(
    tmp_path: Path, crew: Callable[..., Crew], way: str
) -> None:
    """Each block is a graph; FSDP's hooks run between them."""
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    for folder, options in ((plain, ()), (compiled, ("--set", "machine.compile=true"))):
        folder.mkdir()
        layout = ("--set", f"parallel.{way}=2", "--set", "model.layers=2")
        ranks = crew(folder, 2, *layout, *options)
        assert ranks.wait() == [0, 0], ranks.said()
    assert losses(compiled) == pytest.approx(losses(plain), rel=0, abs=1e-3)
    events = [r for r in records(compiled) if isinstance(r, Event) and r.kind == "compiled"]
    assert [event.step for event in events] == [1], "neither gauges nor evaluations compile"
    (data,) = (event.data for event in events)
    assert (data["graphs"], data["graph_breaks"], data["recompilations"]) == (2, 0, 0)
    assert data["cached"] > 0, "equal blocks, and ranks, share their code"
