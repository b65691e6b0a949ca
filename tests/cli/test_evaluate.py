"""`longhaul eval` on texts and tasks: what it prints, and what it refuses."""

import re
from pathlib import Path

import pytest

from longhaul.cli import evaluate as commands
from longhaul.cli.entry import application
from longhaul.core.errors import DataError, UsageError


@pytest.fixture
def call(honest: Path, tmp_path: Path, capsys):
    def call(*words: str) -> str:
        where = ["--runs-dir", str(honest.parent), "--prepared-dir", str(tmp_path / "prepared")]
        application()(["eval", "drill", *words, *where], standalone_mode=False)
        return capsys.readouterr().out

    return call


def test_perplexity_and_bits_per_byte_of_texts(call, tmp_path: Path) -> None:
    for name in ("a.txt", "b.md"):
        (tmp_path / name).write_text("Ada wrote the first program.\n")
    output = call(
        "--text", str(tmp_path / "a.txt"), "--text", str(tmp_path / "b.md"), "--step", "2"
    )
    line = r"perplexity [\d.]+, [\d.]+ nats, [\d.]+ bits per byte, over 29 tokens of 1 document"
    assert re.fullmatch(rf"step 2\n  a\.txt: {line}\n  b\.md: {line}\n", output)


def test_without_text_or_tasks_it_is_the_validation_split(call) -> None:
    assert call().startswith("step 4: validation loss")


def test_mistakes_are_refused(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"nothing\.txt"):
        call("--text", str(tmp_path / "nothing.txt"))
    with pytest.raises(UsageError, match="names no task"):
        call("--tasks", ",")
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as missing:
        call("--tasks", "arc_easy")
    assert missing.value.remedy == "pip install 'longhaul[eval]'"
