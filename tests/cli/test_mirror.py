"""`longhaul mirror` by hand: on a run that is over, and where it cannot be."""

import json
import shutil

import pytest

from longhaul.cli.entry import application
from longhaul.core.errors import LonghaulError
from longhaul.run import mirror as module

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


@pytest.fixture
def folder(honest, tmp_path):
    copy = tmp_path / "runs" / "drill"
    shutil.copytree(honest, copy)
    return copy


def call(folder, *words):
    return application()(
        ["mirror", "drill", *words, "--runs-dir", str(folder.parent)], standalone_mode=False
    )


def refusal(folder, *words):
    with pytest.raises(LonghaulError) as refused:
        call(folder, *words)
    assert refused.value.remedy
    return refused.value


def test_a_run_that_is_over_is_shown_once_and_the_folder_given_is_used(folder, tmp_path):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(2):
        assert call(folder, "--to", "tensorboard", "--out", str(tmp_path / "out")) == 0
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    place = tmp_path / "out" / "tensorboard"
    reader = event_accumulator.EventAccumulator(str(place))
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [event.step for event in reader.Scalars("validation/loss")] == [2, 4]
    story = event_accumulator.EventAccumulator(str(place / "story"))
    story.Reload()
    shown = b"".join(story.Tensors("settings")[0].tensor_proto.string_val).decode()
    settings = json.loads(shown.strip("`\n"))
    assert settings["model"]["width"] == 16
    assert "alert" not in settings, "a webhook's address may be a secret"


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "prometheus"])
def test_a_package_that_is_missing_is_named_with_its_extra(folder, monkeypatch, kind):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    refused = refusal(folder, "--to", kind, "--port", "9400")
    assert refused.exit_code == 2
    assert "not installed" in refused.message
    assert f"longhaul[{kind}]" in refused.remedy


def test_what_is_missing_is_asked_for(folder):
    assert "--port" in refusal(folder, "--to", "prometheus").remedy
    assert "names nobody" in refusal(folder, "--to", "alert").message


def test_a_folder_from_elsewhere_has_no_command_run(folder, tmp_path):
    asked = folder / "asked.json"
    body = json.loads(asked.read_text())
    body["values"]["alert"] = {"command": ["touch", str(tmp_path / "touched")]}
    asked.write_text(json.dumps(body))
    refused = refusal(folder, "--to", "alert")
    assert "alert.command" in refused.message
    assert not (tmp_path / "touched").exists()


def test_a_place_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    refused = refusal(folder, "--to", "tensorboard", "--out", str(tmp_path / "file"))
    assert refused.exit_code == 2
    assert str(tmp_path / "file") in refused.message
