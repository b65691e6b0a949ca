import json

import pytest

from fakes import FakeClock
from longhaul.core.errors import UsageError
from longhaul.logbook.folder import create_run, list_runs, open_run


def test_a_created_run_is_found_by_name_and_by_path(folder):
    runs = folder.path.parent
    assert open_run("alpha", runs) == folder
    assert open_run(str(folder.path), runs / "elsewhere") == folder
    assert [run.name for run in list_runs(runs)] == ["alpha"]


def test_creating_twice_changes_nothing(folder):
    before = folder.identity.read_bytes()
    create_run(folder.path, FakeClock(9.0))
    assert folder.identity.read_bytes() == before


def test_a_missing_run_names_the_nearest(folder):
    with pytest.raises(UsageError, match=r"alhpa: not found(.|\n)*did you mean alpha"):
        open_run("alhpa", folder.path.parent)


def test_a_missing_run_far_from_every_name_lists_those_there_are(folder):
    with pytest.raises(UsageError, match=r"existing runs: alpha"):
        open_run("zzz", folder.path.parent)


def test_no_runs_at_all_says_how_to_start_one(tmp_path):
    with pytest.raises(UsageError, match="longhaul train"):
        open_run("x", tmp_path / "none")


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match=r"no run\.json"):
        open_run("x", tmp_path)


def test_a_newer_format_is_refused(folder):
    folder.identity.write_text(json.dumps({"format": 99}))
    with pytest.raises(UsageError, match="format 99"):
        open_run(folder.path)


def test_a_damaged_identity_is_a_message(folder):
    folder.identity.write_text('{"form')
    with pytest.raises(UsageError, match="damaged"):
        open_run(folder.path)
