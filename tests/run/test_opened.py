"""`longhaul.open`: a run's files as tables and lists, wherever the run lies."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import longhaul
from longhaul.core.errors import UsageError
from longhaul.logbook.folder import RunFolder, list_runs
from longhaul.logbook.reading import read_journal
from longhaul.store.remote_run import look_at
from small_runs import grown


@pytest.fixture(scope="module")
def run(sent: Path) -> longhaul.Run:
    return longhaul.open("drill", sent)


def test_the_journal_is_a_table_of_steps_and_one_of_events(run: longhaul.Run) -> None:
    steps = run.steps()
    assert steps["step"].to_pylist() == [1, 2, 3, 4]
    assert steps["kept"].to_pylist() == [True] * 4
    records = read_journal(RunFolder(run.path), steps=False)
    events = run.events().select(["time", "kind"]).to_pylist()
    assert sorted(map(tuple, map(dict.values, events))) == sorted(
        (record.time, record.kind) for record in records
    )
    total = run.query("SELECT sum(tokens) AS tokens FROM steps")["tokens"].to_pylist()
    assert total == [sum(steps["tokens"].to_pylist())]
    opened = run.query("SELECT data->>'reason' AS why FROM events WHERE kind = 'segment-opened'")
    assert opened["why"].to_pylist() == ["start"]
    assert run.findings() == []
    assert [str(opening.number) for opening in run.segments()] == ["1.00"]


def test_the_frame_has_a_column_for_each_bucket_of_time(run: longhaul.Run) -> None:
    pytest.importorskip("pandas")
    frame = run.frame()
    assert list(frame["step"]) == [1, 2, 3, 4]
    assert (frame["seconds.training"] > 0).all()
    assert not {"seconds", "totals"} & set(frame.columns)


def test_steps_that_were_rolled_back_are_told_from_those_kept(
    run: longhaul.Run, tmp_path: Path
) -> None:
    shutil.copytree(run.path, tmp_path / "drill")
    old = tmp_path / "drill" / "segments" / "1.00" / "settings.json"
    body = json.loads(old.read_bytes())
    new = old.parents[1] / "1.01"
    new.mkdir()
    later = {"number": "1.01", "parent": "1.00", "step": 2, "opened": body["opened"] + 1}
    (new / "settings.json").write_text(json.dumps(body | later))
    assert longhaul.open(tmp_path / "drill").steps()["kept"].to_pylist() == [
        True, True, False, False,
    ]  # fmt: skip


def test_steps_of_an_attempt_that_went_back_come_as_they_were_made(tmp_path: Path) -> None:
    for _ in range(2):  # the same steps again, later, by the same attempt
        grown(tmp_path / "back", steps=3, later=100.0)
    assert longhaul.open(tmp_path / "back").steps()["step"].to_pylist() == [1, 2, 3, 1, 2, 3]


def test_checkpoints_and_the_model_of_each(run: longhaul.Run) -> None:
    there = run.checkpoints()
    assert [checkpoint.step for checkpoint in there] == [2, 4]
    assert {checkpoint.health for checkpoint in there} <= {"verified", "good"}
    model = run.load_model(2)
    assert model.step == 2
    assert "".join(model.write("def", tokens=2)).startswith("def")
    with pytest.raises(UsageError, match="step-3"):
        run.load_model(3)


def test_a_run_in_a_store_is_opened_by_its_address(
    sent: Path, run: longhaul.Run, prepared: Path
) -> None:
    address = sent.parent / "store" / "drill"
    for place in (str(address), f"file://{address}"):
        there = longhaul.open(place, sent)
        assert there.name == "drill"
        assert there.steps().equals(run.steps())
        assert [c.step for c in there.checkpoints()] == [2, 4]
        assert not (there.path / "checkpoints").exists()
    assert there.refresh().summary().state == "finished"
    weights = run.load_model(2).model.state_dict()
    fetched = longhaul.open(address, sent, prepared).load_model(2)
    assert all(torch.equal(weights[name], w) for name, w in fetched.model.state_dict().items())
    with pytest.raises(UsageError, match="does not have checkpoint step-3"):
        there.load_model(3)
    assert [folder.name for folder in list_runs(sent)] == ["drill"]


def test_a_journal_in_a_store_that_has_grown_is_fetched_again(sent: Path, tmp_path) -> None:
    address = str(sent.parent / "store" / "drill")
    said: list[str] = []
    remote = look_at(address, tmp_path, said.append)
    journal = next(remote.folder.journal.glob("*.pilot.jsonl"))
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2])
    (remote.folder.path / "asked.json").write_text("{}")
    remote.refresh()
    assert journal.read_bytes() == whole
    assert (remote.folder.path / "asked.json").read_bytes() == (
        sent / "drill" / "asked.json"
    ).read_bytes()
    assert said == []  # as after a fetch that had to be made again


def test_mistakes_have_a_way_out(run: longhaul.Run, sent: Path, tmp_path: Path) -> None:
    with pytest.raises(longhaul.UsageError, match="did you mean drill"):
        longhaul.open("dril", sent)
    with pytest.raises(UsageError, match="this SQL does not work"):
        run.query("SELECT nothing FROM steps")
    with pytest.raises(UsageError, match="no run log lies there"):
        longhaul.open(f"file://{tmp_path}/nothing", tmp_path)
