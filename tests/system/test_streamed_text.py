"""A run whose text comes from a store while it trains ends as one that has it on its disk."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from data.small_shards import in_small_shards
from fork_server import SERVER, Process
from longhaul.data.dataset import MANIFEST, open_dataset
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_last
from small_runs import FEW_HELD_OUT

DEADLINE_S = 120
STEPS = 180
OPTIONS = (
    f"--set=train.steps={STEPS}", f"--set={FEW_HELD_OUT}", "--set=evaluation.tokens=1024",
    "--set=evaluation.interval_steps=1000", "--set=checkpoint.interval_steps=20",
    "--set=order.shuffle_tokens=8000",
)  # fmt: skip
ROOM = 0.0006
"""GB: a dozen shards, of nearly three hundred."""


@dataclass
class Place:
    """A folder with its runs and prepared text."""

    path: Path
    processes: list[Process] = field(default_factory=list)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path / "runs" / "drill")

    @property
    def text(self) -> Path:
        return next(path.parent for path in (self.path / "prepared").glob(f"*/{MANIFEST}"))

    @property
    def shards(self) -> set[str]:
        return {path.name for path in (self.path / "cache").glob("[0-9a-f][0-9a-f]/*")}

    def start(self, *arguments: str) -> Process:
        knows = arguments[:2] != ("data", "prepare") and "--runs-dir" not in arguments
        where = ["--runs-dir", "runs"] if knows else []
        program = ["-m", "longhaul", *arguments, *where, "--prepared-dir", "prepared"]
        process = SERVER.start(program, self.path, os.environ | {"COLUMNS": "200"})
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, output

    def pull(self, bucket: str, name: str, *more: str) -> str:
        code, output = self.run("data", "pull", name, "--from", f"{bucket}/texts", *more)
        assert code == 0, output
        return output

    def weights(self) -> dict[str, bytes]:
        found = (self.folder.checkpoints / f"step-{STEPS}").glob("*.safetensors")
        return {path.name: path.read_bytes() for path in found}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Place]]:
    made = {name: Place(tmp_path / name) for name in ("whole", "streamed")}
    for place in made.values():
        place.path.mkdir()
    yield made
    for process in (process for place in made.values() for process in place.processes):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_run_reads_from_a_store_what_it_is_about_to_read(
    places: dict[str, Place], bucket: str, wait_until
) -> None:
    whole, streamed = places["whole"], places["streamed"]
    code, output = whole.run("data", "prepare", "drill", f"--set={FEW_HELD_OUT}")
    assert code == 0, output
    name = in_small_shards(whole.text, 20_000).name
    code, output = whole.run("data", "push", name, "--to", f"{bucket}/texts")
    assert code == 0, output
    code, output = whole.run("train", "drill", *OPTIONS)
    assert code == 0, output

    options = ("--stream", "--cache", "cache", "--cache-gb", str(ROOM))
    assert "comes while it is read" in streamed.pull(bucket, name, *options)
    sources = open_dataset(streamed.text).sources
    assert sum(len(source.train.shards) for source in sources) > 200
    assert not streamed.shards
    without = [option for option in OPTIONS if "shuffle_tokens" not in option]
    code, output = streamed.run("train", "drill", "--runs-dir", "refused", *without)
    assert code == 3, output
    assert "set order.shuffle_tokens" in output

    # Killed on its way, it goes on.
    process = streamed.start("train", "drill", *OPTIONS)

    def begun() -> bool:
        assert process.poll() is None, process.communicate()[0]
        last = read_last(streamed.folder, 1, events=False) if streamed.folder.exists else []
        return bool(last) and last[0].step >= 30

    wait_until("step 30", begun)
    first = streamed.shards
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)
    code, output = streamed.run("train", "drill")
    assert code == 0, output
    assert streamed.weights() == whole.weights()
    assert len(streamed.shards) <= 16
    assert first - streamed.shards, "what was read went again"
    size = sum(path.stat().st_size for path in (streamed.path / "cache").glob("[0-9a-f][0-9a-f]/*"))
    assert size <= ROOM * 1e9
