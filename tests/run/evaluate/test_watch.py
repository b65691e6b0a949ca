"""Checkpoints are judged once each, as they appear, and the run that made them notices nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import acquire
from longhaul.logbook.reading import journal_files
from longhaul.logbook.run_history import read_run_history
from longhaul.run.elsewhere import text_here
from longhaul.run.evaluate.watch import Asked, Watch
from longhaul.run.trained import open_trained
from longhaul.store.catalogue import catalogue
from longhaul.store.part import bring_part
from longhaul.store.remote_run import look_at
from longhaul.store.scores import AUTHOR, read_scores
from longhaul.store.transfers import StoreError


class Enough(Exception):
    """The test has seen what it came for."""


def never() -> None:
    raise AssertionError("there was something to do")


@pytest.fixture
def store(sent: Path, tmp_path: Path) -> Path:
    """A copy of the store, with the run in it."""
    return shutil.copytree(sent.parent / "store", tmp_path / "store") / "drill"


@pytest.fixture
def elsewhere(store: Path, tmp_path: Path, prepared: Path):
    """A watch of that run on a machine that has nothing of it but its text."""

    def watch(name: str = "judge", **asked) -> tuple[Watch, list[str]]:
        said: list[str] = []
        remote = look_at(f"file://{store}", tmp_path / name, said.append)
        what = Asked(prepared=prepared, **asked)
        return Watch(remote.folder, what, RealClock(), said.append, remote), said

    return watch


def losses(folder: RunFolder) -> dict[int, float]:
    return {event.step: event.data["loss"] for event in read_scores(folder)}


def test_checkpoints_in_a_store_are_judged_by_their_model_alone(
    elsewhere, sent: Path, monkeypatch
) -> None:
    fetched = []

    def bring(*given):
        manifest, size = bring_part(*given)
        fetched.append((size, manifest.size_bytes))
        return manifest, size

    monkeypatch.setattr("longhaul.run.elsewhere.bring_part", bring)
    watch, said = elsewhere()
    watch.run(never)
    here = {step: open_trained("drill", sent, step).evaluate().loss for step in (2, 4)}
    assert losses(watch.folder) == here
    # AdamW keeps two numbers beside each weight.
    assert all(3 * size < whole for size, whole in fetched)
    assert not (watch.folder.path / ".fetched").exists()
    assert [line.split(" ")[:2] for line in said if "validation loss" in line] == [
        ["step", "2"], ["step", "4"],
    ]  # fmt: skip


def test_each_is_judged_once_by_all_machines_together_and_anew_on_other_things(
    elsewhere, tmp_path: Path
) -> None:
    first, _ = elsewhere()
    first.run(never)
    other, said = elsewhere("another machine")
    other.run(never)
    assert losses(other.folder) == losses(first.folder)
    assert not any("validation loss" in line for line in said)
    # What evaluators beside the run have written may come from the store with its log.
    for folder in (first.folder, other.folder):
        assert AUTHOR not in {file.author for file in journal_files(folder.journal)}
    (tmp_path / "a.txt").write_text("Ada wrote it.")
    anew, _ = elsewhere(texts=(str(tmp_path / "a.txt"),))
    anew.run(never)
    texts = [event.data["texts"]["a.txt"]["tokens"] for event in read_scores(anew.folder)
             if "texts" in event.data]  # fmt: skip
    assert texts == [13, 13]


def test_a_store_that_is_away_is_asked_again(elsewhere, monkeypatch) -> None:
    watch, said = elsewhere()
    answers = iter([StoreError("it is away"), None])

    def refresh(self=watch.remote, whole=watch.remote.refresh):
        if (error := next(answers, None)) is not None:
            raise error
        whole()

    monkeypatch.setattr(watch.remote, "refresh", refresh)
    paused = []
    watch.run(lambda: paused.append(1))
    assert paused == [1]
    assert "WARNING: it is away; trying again" in said
    assert sorted(losses(watch.folder)) == [2, 4]


def test_a_store_that_takes_no_results_keeps_nobody_from_judging(elsewhere, monkeypatch) -> None:
    watch, said = elsewhere()

    def refuse(event) -> None:
        raise StoreError("read only")

    monkeypatch.setattr(watch.remote, "send_score", refuse)
    watch.run(never)
    assert sorted(losses(watch.folder)) == [2, 4]
    assert any(line.startswith("WARNING: read only; the result is in ") for line in said)


def test_results_of_strangers_in_a_store_are_passed_over(elsewhere, store: Path) -> None:
    elsewhere()[0].run(never)
    (result, _) = sorted((store / "scores").iterdir())
    line = json.loads(result.read_text())
    (store / "scores" / "nonsense.json").write_text("{")
    (store / "scores" / result.name.replace("step-2", "step-3")).write_text(json.dumps(line))
    later = json.dumps(line | {"attempt": 9, "step": 7})
    (store / "scores" / result.name.replace("step-2", "step-7")).write_text(later)
    again, _ = elsewhere("another machine")
    again.run(never)
    assert sorted(losses(again.folder)) == [2, 4]
    assert {file.attempt for file in journal_files(again.folder.journal)} == {1}


@pytest.mark.parametrize(("path", "told"), [
    ("/nowhere/text.jsonl", "cannot be judged without its text"),
    ("python-stdlib", "its sources give"),
])  # fmt: skip
def test_the_runs_own_text_must_be_here(
    elsewhere, tmp_path: Path, prepared: Path, path: str, told: str, monkeypatch
) -> None:
    watch, _ = elsewhere()
    own = text_here(watch.remote, prepared, print)
    body = json.loads(watch.folder.run_spec.read_text())
    body["values"]["data"]["sources"] = [{"path": path}]
    watch.folder.run_spec.write_text(json.dumps(body))
    monkeypatch.setattr(watch.remote, "refresh", lambda: None)
    if path == "python-stdlib":  # it is another version's here
        made = replace(own, identity="x")
        monkeypatch.setattr("longhaul.run.elsewhere.prepare", lambda *given: made)
    bare = replace(watch, asked=replace(watch.asked, prepared=tmp_path / "bare"))
    with pytest.raises(UsageError, match=told):
        bare.run(never)
    shutil.copytree(own.folder, tmp_path / "bare" / "under another name")
    bare.run(never)
    assert sorted(losses(watch.folder)) == [2, 4]


@pytest.fixture
def going_on(sent: Path, tmp_path: Path) -> RunFolder:
    """A run that is not finished yet, and has checkpoint 2 of 4."""
    folder = RunFolder(shutil.copytree(sent / "drill", tmp_path / "runs" / "drill"))
    events = folder.journal / "000001.pilot.events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if '"finished"' not in line))
    (folder.checkpoints / "step-4").rename(tmp_path / "step-4")
    return folder


def test_a_checkpoint_that_appears_is_judged_and_the_run_is_left_alone(
    going_on: RunFolder, tmp_path: Path
) -> None:
    before = read_run_history(going_on)
    lease = acquire(going_on, RealClock())  # somebody trains it
    states = []

    def pause() -> None:
        states.append(sorted(losses(going_on)))
        if len(states) == 2:
            raise Enough
        (tmp_path / "step-4").rename(going_on.checkpoints / "step-4")

    with pytest.raises(Enough):
        Watch(going_on, Asked(), RealClock(), print).run(pause)
    assert states == [[2], [2, 4]]
    assert lease.is_ours()
    after = read_run_history(going_on)
    assert (after.last_seen, after.steps_made) == (before.last_seen, before.steps_made)
    assert {file.name for file in going_on.journal.iterdir()} - {".reserve"} == {
        "000001.pilot.jsonl", "000001.pilot.events.jsonl", "000001.evaluator.events.jsonl",
    }  # fmt: skip


def test_one_that_is_damaged_is_told_once_and_the_others_are_judged(going_on: RunFolder) -> None:
    shutil.copytree(going_on.checkpoints / "step-2", going_on.checkpoints / "step-1")
    file = next((going_on.checkpoints / "step-2").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said: list[str] = []
    pauses = []

    def pause() -> None:
        pauses.append(1)
        if len(pauses) == 2:
            raise Enough

    with pytest.raises(Enough):
        Watch(going_on, Asked(), RealClock(), said.append).run(pause)
    assert [line[:20] for line in said] == ["step 2: not judged: "]
    assert [c.step for c in catalogue(going_on.checkpoints) if c.damage] == [1]
