"""No command prints what a terminal would obey, whoever wrote it."""

import json
import sys
import time
from contextlib import closing

import pytest

from fakes import FakeClock
from longhaul.cli.common import Shown, console, text_only
from longhaul.cli.entry import application
from longhaul.core.output import print_error, print_out
from longhaul.core.records import Decision, Event, Finding, StepRecord
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment
from longhaul.supervise.nodes.ledger import NodeEvent, append

TITLE, CLEAR, REVERSED, LINK = "\x1b]0;title\x07", "\x9b2J", "\u202e", "[link=http://x]y[/link]"
WICKED = f":smile:{LINK}{TITLE}{CLEAR}{REVERSED}[/b]\r"
OBEYED = ("\x1b]", "\x07", "\x9b", "\u202e", "\r", "\x1b[2J")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run in which everything that is text was written by somebody who means harm."""
    monkeypatch.chdir(tmp_path)
    folder = create_run(tmp_path / "runs" / "alpha", FakeClock())
    asked = resolve_spec("drill", (), None, tmp_path / "prepared")
    write_run_spec(folder, asked)
    opening = {"attempt": 1, "step": 0, "draw": 0, "settings": dict(asked.values), "opened": 1e9}
    difference = {WICKED: (WICKED, {WICKED: 1})}
    open_segment(
        folder,
        SegmentOpening(number=SegmentNumber(1, 0), parent=None, reason=WICKED, **opening),
    )
    opened = folder.segments / "1.00" / "settings.json"
    opened.write_text(json.dumps(json.loads(opened.read_text()) | {"difference": difference}))
    shared = {"attempt": 1, "segment": "1.00", "time": 1e9}
    with closing(Journal(folder, 1)) as journal:
        for step in range(1, 4):
            journal.append(
                StepRecord(
                    step=step, draw=step, next_draw=step + 1, loss=5.0, gradient_norm=1.0,
                    learning_rate=0.1, sequences=1, sequence_length=8, **shared,
                )
            )  # fmt: skip
        journal.append(
            Finding(
                kind=WICKED, severity="warning", step=3, first_step=3, first_draw=0,
                subject=WICKED, sentence=WICKED, **shared,
            )
        )  # fmt: skip
        told = {"who": WICKED, "reason": WICKED}
        done = {"cause": WICKED, "actions": [WICKED], "rollback": {"from": 3, "to": 1}}
        override = {"path": "optim.lr", "value": 0.1, "old": WICKED}
        journal.append(Decision(kind="recover", step=3, data=done, **told, **shared))
        journal.append(Decision(kind="set", step=3, data=override, **told, **shared))
        live = {"text": WICKED, "live": {WICKED: WICKED}}
        journal.append(Event(kind=WICKED, step=3, data=live, **shared))
    for kind, more in (("joined", {}), ("failed", {"cause": WICKED}),
                       ("cordoned", {"reason": WICKED, "who": WICKED})):  # fmt: skip
        append(folder.path, NodeEvent(kind=kind, parts=(WICKED,), host=WICKED, time=time.time(),
                                      **more))  # fmt: skip
    return folder.path.parent


@pytest.mark.parametrize("is_terminal", [False, True], ids=["a pipe", "a terminal"])
@pytest.mark.parametrize("command", ["runs", "log", "tree", "diff", "nodes", "replay"])
def test_planted_escapes_do_not_reach_a_terminal(runs, capsys, monkeypatch, command, is_terminal):
    monkeypatch.setenv("COLUMNS", "600")
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    words = [command] if command == "runs" else [command, "alpha"]
    capsys.readouterr()
    application()([*words, "--runs-dir", str(runs)], standalone_mode=False)
    shown = "".join(capsys.readouterr())
    assert not [sequence for sequence in OBEYED if sequence in shown]
    if command != "runs":
        assert "\ufffd" in shown, "nothing of what was planted was printed"
        assert "title" in shown
    if command in ("nodes", "tree"):
        assert "[link=http://x]y[/link]" in shown, "it is text, and no markup"
        assert ":smile:" in shown
        assert ("\x1b[1m" in shown) is is_terminal, "headers are bold, on a terminal only"


def test_what_a_model_writes_is_text(monkeypatch, capsys):
    class Model:
        def write(self, *wanted):
            yield from ("a\x1b", "]0;x\x07", "b\n")

    monkeypatch.setattr("longhaul.run.trained.open_trained", lambda *_: Model())
    application()(["sample", "alpha"], standalone_mode=False)
    assert capsys.readouterr().out == "a\ufffd]0;x\ufffdb\n\n"


def test_lines_of_training_and_errors_are_text(capsys):
    with text_only():
        print_out(WICKED)
        print_error(WICKED)
        console().print(WICKED)
        print(WICKED)
    print_out(WICKED)
    assert not isinstance(sys.stdout, Shown)
    shown = "".join(capsys.readouterr())
    assert not [sequence for sequence in OBEYED if sequence in shown]
    assert shown.count("title") == 5


def test_typer_finds_no_way_past_it(monkeypatch):
    with text_only():
        assert not hasattr(sys.stdout, "buffer")
