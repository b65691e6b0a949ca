"""A run moved between two folders that stand for two clusters, an S3 server between them."""

import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusters_file import write_clusters
from fork_server import SERVER, Process
from longhaul.core.clocks import RealClock
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder
from longhaul.logbook.moves import move_of
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.segments import read_segments
from longhaul.store.catalogue import catalogue
from longhaul.store.manifest import verify
from small_runs import FEW_HELD_OUT, HALF_A_STEP

HERE = Path(__file__).parent
DEADLINE_S = 120
STEPS = 180
OPTIONS = tuple(
    f"--set={option}"
    for option in (
        f"train.steps={STEPS}", *HALF_A_STEP, FEW_HELD_OUT, "evaluation.interval_steps=1000",
        "checkpoint.interval_steps=10",
    )
)  # fmt: skip


@dataclass
class Clusters:
    """Two folders, `a` and `b`, each with its runs and prepared text."""

    path: Path
    processes: list[Process] = field(default_factory=list)

    def runs(self, cluster: str) -> Path:
        return self.path / cluster / "runs"

    def folder(self, cluster: str) -> RunFolder:
        return RunFolder(self.runs(cluster) / "drill")

    def write(self, bucket: str) -> None:
        clusters = {name: (self.runs(name), f"{bucket}/{name}") for name in ("a", "b")}
        write_clusters(self.path / "clusters.toml", clusters)

    def start(self, cluster: str, *arguments: str, killed_at: int | None = None) -> Process:
        program = ["-m", "longhaul"]
        if killed_at is not None:
            program = [str(HERE / "killed_move.py"), str(killed_at)]
        where = ["--runs-dir", str(self.runs(cluster))]
        if arguments[0] in ("train", "run", "data"):
            where += ["--prepared-dir", str(self.path / cluster / "prepared")]
        environment = os.environ | {"COLUMNS": "200"}
        process = SERVER.start([*program, *arguments, *where], self.path, environment)
        self.processes.append(process)
        return process

    def run(self, cluster: str, *arguments: str, killed_at: int | None = None) -> tuple[int, str]:
        process = self.start(cluster, *arguments, killed_at=killed_at)
        output, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, output

    def train_until(self, cluster: str, step: int, wait_until, *recipe: str) -> Process:
        process = self.start(cluster, "train", *(recipe or ("drill", *OPTIONS)))
        folder = self.folder(cluster)

        def reached() -> bool:
            assert process.poll() is None, process.communicate()[0]
            last = read_last(folder, 1, events=False) if folder.exists else []
            return bool(last) and last[0].step >= step

        wait_until(f"step {step}", reached)
        return process

    def startable(self, cluster: str) -> bool:
        folder = self.folder(cluster)
        return folder.exists and move_of(folder) is None


@pytest.fixture
def clusters(tmp_path: Path, bucket: str) -> Iterator[Clusters]:
    made = Clusters(tmp_path)
    made.write(bucket)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def never_moved(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> dict[str, bytes]:
    """The last checkpoint of the same run, made in one go."""
    clusters = Clusters(tmp_path_factory.mktemp("never-moved"))
    (clusters.path / "a").mkdir()
    (clusters.path / "a" / "prepared").symlink_to(prepared)
    code, output = clusters.run("a", "train", "drill", *OPTIONS)
    assert code == 0, output
    return weights(clusters.folder("a"))


def weights(folder: RunFolder, step: int = STEPS) -> dict[str, bytes]:
    found = (folder.checkpoints / f"step-{step}").glob("*.safetensors")
    return {path.name: path.read_bytes() for path in found}


def events(folder: RunFolder, kind: str) -> list[Event]:
    return [r for r in read_journal(folder, steps=False) if isinstance(r, Event) and r.kind == kind]


def whole(folder: RunFolder) -> None:
    """What a start would need is there, byte by byte."""
    checkpoints = catalogue(folder.checkpoints)
    assert checkpoints
    for checkpoint in checkpoints:
        verify(checkpoint.path)
    assert events(folder, "moved")
    assert read_segments(folder)


def test_a_live_run_moves_and_ends_as_if_it_had_stayed(
    clusters: Clusters, never_moved, wait_until
) -> None:
    live = clusters.train_until("a", 15, wait_until)
    code, output = clusters.run("a", "run", "move", "drill", "--to", "b")
    assert code == 2, output
    assert f"process {live.pid}" in output
    assert clusters.startable("a")
    code, output = clusters.run(
        "a", "run", "move", "drill", "--to", "b", "--stop", "--reason", "b is cheaper"
    )
    assert code == 0, output
    assert live.wait(DEADLINE_S) in (0, 16)
    assert "`longhaul run move drill --from a`" in output
    left = read_last(clusters.folder("a"), 1, events=False)[0].step
    assert 15 <= left < STEPS, "it was to be moved before its end"

    code, output = clusters.run("a", "train", "drill")
    assert code == 17, output
    assert f"moved to cluster b at step {left}" in output
    assert "(b is cheaper)" in output
    code, output = clusters.run("b", "run", "move", "drill", "--from", "a")
    assert code == 0, output
    whole(clusters.folder("b"))
    code, output = clusters.run("b", "train", "drill")
    assert code == 0, output
    assert weights(clusters.folder("b")) == never_moved

    first, second = read_segments(clusters.folder("b"))
    assert (str(second.number), second.parent, second.checkpoint) == ("1.01", first.number, left)
    assert second.reason == f"restart from step {left} (moved from a to b: b is cheaper)"
    (moved,) = events(clusters.folder("b"), "moved")
    assert (moved.data["source"], moved.data["destination"]) == ("a", "b")
    code, output = clusters.run("b", "runs", "--all")
    assert code == 0, output
    assert re.search(r"drill +b +finished", output), output
    assert re.search(r"drill +a +moved .*to b", output), output
    code, output = clusters.run("a", "runs")
    assert re.search(r"drill +to b", output), output


def test_a_move_killed_again_and_again_ends_byte_identical(
    clusters: Clusters, never_moved, wait_until
) -> None:
    """Both halves die at random moments, until one gets through; then the run moves back."""
    chance = random.Random(os.environ.get("SEED", "17"))
    process = clusters.train_until("a", 12, wait_until)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    killed = {side: move_under_fire(clusters, side, chance) for side in ("a", "b")}
    assert all(times >= 2 for times in killed.values()), killed
    whole(clusters.folder("b"))

    process = clusters.train_until("b", 35, wait_until, "drill")
    code, output = clusters.run("b", "run", "move", "drill", "--to", "a", "--stop")
    assert code == 0, output
    assert process.wait(DEADLINE_S) in (0, 16)
    code, output = clusters.run("a", "run", "move", "drill", "--from", "b")
    assert code == 0, output
    assert clusters.startable("a")
    assert not clusters.startable("b")
    code, output = clusters.run("a", "train", "drill")
    assert code == 0, output
    assert weights(clusters.folder("a")) == never_moved
    assert len(events(clusters.folder("a"), "moved")) == 2
    parents = [str(s.parent) for s in read_segments(clusters.folder("a"))]
    assert parents == ["None", "1.00", "1.01"]


def move_under_fire(clusters: Clusters, side: str, chance: random.Random) -> int:
    """Kill one half of a move at random moments, each time later ones too, and start it again; how
    often it was killed.
    """
    words = ("run", "move", "drill", *(("--to", "b") if side == "a" else ("--from", "a")))
    for killed in range(200):
        code, output = clusters.run(side, *words, killed_at=chance.randint(1, 15 * (killed + 1)))
        at_once = [clusters.startable("a"), clusters.startable("b")]
        assert sum(at_once) <= 1, "two clusters could train the run"
        if at_once[1]:
            whole(clusters.folder("b"))
        if code == 0:
            return killed
        assert code == -signal.SIGKILL, output
    raise AssertionError("it never got through")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("side", ["a", "b"])
def test_every_moment_of_a_move_may_be_its_last(
    clusters: Clusters, never_moved, bucket: str, wait_until, side: str
) -> None:
    """One half of a move is killed at each of its moments, from the same beginning each time, and
    then goes on undisturbed.
    """
    import s3fs

    process = clusters.train_until("a", 12, wait_until)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    there, here = ("run", "move", "drill", "--to", "b"), ("run", "move", "drill", "--from", "a")
    if side == "b":
        code, output = clusters.run("a", *there)
        assert code == 0, output
    begun = clusters.path / "begun"
    clusters.runs("a").rename(begun)
    system = s3fs.S3FileSystem(use_listings_cache=False)
    for moment in range(1, 1000):
        for name in ("a", "b"):
            shutil.rmtree(clusters.runs(name), ignore_errors=True)
        shutil.copytree(begun, clusters.runs("a"))
        clusters.write(f"{bucket}/moment-{moment}")
        if side == "b":
            system.copy(f"{bucket}/b", f"{bucket}/moment-{moment}/b", recursive=True)
        words = there if side == "a" else here
        code, output = clusters.run(side, *words, killed_at=moment)
        at_once = [clusters.startable("a"), clusters.startable("b")]
        assert sum(at_once) <= 1, f"moment {moment}: two clusters could train the run"
        if at_once[1]:
            whole(clusters.folder("b"))
        if code == 0:
            break
        assert code == -signal.SIGKILL, f"moment {moment}: {output}"
        code, output = clusters.run(side, *words)
        assert code == 0, f"after moment {moment}: {output}"
        assert len(events(clusters.folder(side), "moved")) == 1
        if side == "b":
            whole(clusters.folder("b"))
        assert clusters.startable("b") is (side == "b")
    assert moment > 20
    print(f"\nthe half in {side} was killed at each of its {moment - 1} moments")
    if side == "a":
        code, output = clusters.run("b", *here)
        assert code == 0, output
    code, output = clusters.run("b", "train", "drill")
    assert code == 0, output
    assert weights(clusters.folder("b")) == never_moved


def test_what_is_refused_changes_nothing(clusters: Clusters, wait_until) -> None:
    process = clusters.train_until("a", 12, wait_until)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    for words, message in (
        (("--to", "bb"), "did you mean b?"),
        (("--to", "a"), "cluster a: this is it"),
        ((), "give one of --to and --from"),
        (("--to", "b", "--from", "b"), "give one of --to and --from"),
        (("--from", "b"), "no run drill is offered there"),
        (("--to", "b", "--cancel"), "no move is under way here"),
    ):
        code, output = clusters.run("a", "run", "move", "drill", *words)
        assert code == 2, output
        assert message in output
    code, output = clusters.run("a", "run", "move", "dril", "--to", "b")
    assert code == 2
    assert "did you mean drill?" in output
    assert clusters.startable("a")
    assert live_holder(clusters.folder("a"), RealClock()) is None
    assert not clusters.folder("b").path.exists()


@pytest.mark.slow  # beside the one without
def test_a_run_that_saves_to_the_same_store_goes_on_doing_so(
    clusters: Clusters, never_moved, bucket: str, wait_until
) -> None:
    """One bucket for all clusters: what lies there already is not sent again."""
    process = clusters.train_until(
        "a", 25, wait_until, "drill", *OPTIONS, f"--set=checkpoint.remote='{bucket}/b'"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    for cluster, words in (("a", ("--to", "b")), ("b", ("--from", "a"))):
        code, output = clusters.run(cluster, "run", "move", "drill", *words)
        assert code == 0, output
    code, output = clusters.run("b", "train", "drill")
    assert code == 0, output
    assert weights(clusters.folder("b")) == never_moved
    assert not events(clusters.folder("b"), "store-taken")
    assert [e.step for e in events(clusters.folder("b"), "uploaded")][-1] == STEPS
    code, output = clusters.run("a", "runs", "--all")
    assert re.search(r"drill +b +finished", output), output
    assert re.search(r"drill +a +moved .*to b", output), output


@pytest.mark.slow  # its parts have tests of their own
def test_a_run_goes_on_where_only_its_prepared_text_was_brought(
    clusters: Clusters, wait_until
) -> None:
    source = clusters.path / "notes.txt"
    source.write_text("\n\n".join(f"Note {n}: " + "words and words. " * 20 for n in range(300)))
    recipe = ("drill", *OPTIONS, f"--data={source}", "--set=data.held_out.by='tail'",
              "--set=data.held_out.fraction=0.1")  # fmt: skip
    process = clusters.train_until("a", 12, wait_until, *recipe)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    (prepared,) = (clusters.path / "a" / "prepared").glob("notes*")
    source.unlink()

    for cluster, words in (
        ("a", ("data", "push", prepared.name, "--to", "b")),
        ("b", ("data", "pull", prepared.name, "--from", "b", "--cache", "b/cache",
               "--cache-gb", "0.1")),
        ("a", ("run", "move", "drill", "--to", "b")),
        ("b", ("run", "move", "drill", "--from", "a")),
    ):  # fmt: skip
        code, output = clusters.run(cluster, *words)
        assert code == 0, output
        assert "WARNING: its prepared text" not in output
    code, output = clusters.run("b", "train", "drill")
    assert code == 0, output
    assert read_last(clusters.folder("b"), 1, events=False)[0].step == STEPS
    assert len(list((clusters.path / "b" / "cache").glob("[0-9a-f]*/*"))) >= 2


@pytest.mark.slow  # a real file system, which only root may mount
@pytest.mark.parametrize(
    ("options", "message"),
    [("size=1m", "are to come, and"), ("size=16m,nr_inodes=24", "No space left on device")],
    ids=["no bytes left", "no inodes left in the middle"],
)
def test_a_full_disk_at_the_destination(
    clusters: Clusters, wait_until, options: str, message: str
) -> None:
    process = clusters.train_until("a", 12, wait_until)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    code, output = clusters.run("a", "run", "move", "drill", "--to", "b")
    assert code == 0, output
    runs = clusters.runs("b")
    runs.mkdir(parents=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(runs)],
            capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system cannot be mounted here, which needs root: {error}")
    try:
        code, output = clusters.run("b", "run", "move", "drill", "--from", "a")
        assert code == 17, output
        assert "the disk is full" in output
        assert message in output
        code, output = clusters.run("b", "train", "drill")
        assert code == 17, output
        assert "not all of it is here yet" in output
        larger = ["mount", "-o", "remount,size=64m,nr_inodes=4096", str(runs)]
        subprocess.run(larger, capture_output=True, check=True)
        code, output = clusters.run("b", "run", "move", "drill", "--from", "a")
        assert code == 0, output
        whole(clusters.folder("b"))
        assert clusters.startable("b")
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=False)


@pytest.mark.slow  # tests/data/test_shard_server.py has the same in one process
def test_nodes_pass_shards_by_real_processes(tmp_path: Path, prepared: Path, wait_until) -> None:
    """One serves, another asks it; the store is gone by then."""
    recipe = ("data", "prepare", "drill", "--prepared-dir", str(prepared))
    started = []

    def begin(*words: str) -> Process:
        started.append(SERVER.start(["-m", "longhaul", *words], tmp_path, os.environ))
        return started[-1]

    def run(*words: str) -> str:
        process = begin(*words)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
        return output

    try:
        text = re.search(r"prepared in (\S+)", run(*recipe))
        assert text is not None
        name, store = Path(text[1]).name, f"{tmp_path}/store"
        run("data", "push", text[1], "--to", store)
        room = ("--cache-gb", "0.5")
        run("data", "pull", name, "--from", store, "--cache", "one", *room, "--prepared-dir", "p1")
        log = (tmp_path / "serve.log").open("w+")
        server = SERVER.start(
            ["-m", "longhaul", "data", "serve", name, "--from", store, "--cache", "one", *room,
             "--port", "0"], tmp_path, os.environ, log,
        )  # fmt: skip
        started.append(server)

        def address() -> re.Match[str] | None:
            return re.search(r"on (http://\S+)", (tmp_path / "serve.log").read_text())

        wait_until("the server", lambda: address() is not None)
        found = address()
        assert found is not None
        for shard in (tmp_path / "store" / name).glob("*.shard"):
            shard.unlink()
        run("data", "pull", name, "--from", store, "--cache", "two", *room, "--prepared-dir", "p2",
            "--node", found[1])  # fmt: skip
        for path in (tmp_path / "p1" / name).glob("*.shard"):
            assert (tmp_path / "p2" / name / path.name).read_bytes() == path.read_bytes()
        server.send_signal(signal.SIGINT)
        assert server.wait(DEADLINE_S) == 130
        log.close()
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
