"""A run's folder from a stranger: every command that reads ends with a line and a code, soon."""

import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path

import pytest
from typer.main import get_command

from longhaul.cli.entry import application
from longhaul.core import strict
from longhaul.core.errors import LonghaulError

COMMANDS = {
    "runs": ["runs"], "log": ["log", "drill"], "tree": ["tree", "drill"], "diff": ["diff", "drill"],
    "report": ["report", "drill"], "nodes": ["nodes", "drill"], "replay": ["replay", "drill"],
    "sample": ["sample", "drill", "--tokens", "2"], "eval": ["eval", "drill"],
}  # fmt: skip
COMMAND_LINE = get_command(application())
"""Put together once: that takes longer than most commands here."""
DEADLINE_S = 60
MOST_GROWTH_KB = 1_500_000
DEEP = b"[" * 100_000 + b"]" * 100_000

CONTENTS = {
    "deep": lambda path: path.write_bytes(DEEP),
    "deep in a value": lambda path: put(path, b'{"format": 1, "x": ' + DEEP + b"}"),
    "not a number": lambda path: put(path, b'{"format": NaN}'),
    "infinite": lambda path: put(path, b'{"format": 1e999}'),
    "5,000 digits": lambda path: put(path, b'{"format": ' + b"9" * 5000 + b"}"),
    "a key twice": lambda path: put(path, b'{"format": 1, "format": 1}'),
    "binary": lambda path: put(path, bytes(range(256)) * 64),
    "empty": lambda path: put(path, b""),
    "zeros": lambda path: put(path, bytes(4096)),
    "a list": lambda path: put(path, b"[1, 2]"),
    "an object of nothing": lambda path: put(path, b"{}"),
    "surrogates": lambda path: put(path, b'{"format": "\\ud800"}'),
    "texts for numbers": lambda path: put(
        path, re.sub(rb": ?([0-9.]+)", rb': "\1"', bytes_of(path))
    ),
    "numbers for texts": lambda path: put(path, re.sub(rb': ?"[^"]*"', b": 7", bytes_of(path))),
    "10^12 for numbers": lambda path: put(
        path, re.sub(rb": ?[0-9]+([,\n}])", rb": 1000000000000\1", bytes_of(path))
    ),
    "8 GB of nothing": lambda path: os.truncate(path, 8 << 30),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
    "a link to /dev/zero": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
}
STORY = ("runs", "log", "tree", "report", "replay")
FILES = {
    "run.json": (*COMMANDS,),
    "asked.json": ("diff", "nodes", "replay", "sample"),
    "text.json": ("sample", "eval"),
    "segments/1.00/settings.json": ("runs", "tree", "diff", "report", "replay"),
    "lease/000001.json": ("runs", "tree", "report"),
    "journal/000001.pilot.jsonl": STORY,
    "journal/000001.pilot.events.jsonl": (*STORY, "diff", "sample"),
    "checkpoints/step-4/manifest.json": ("sample",),
    "checkpoints/step-4/metadata.json": ("sample",),
    "checkpoints/step-4/state.json": ("sample",),
    "nodes.jsonl": ("nodes",),
}
"""The files of a run, and the commands that read each."""


def bytes_of(path):
    return path.read_bytes() if path.exists() else b"{}"


def put(path, content):
    path.write_bytes(content)


def give(arguments, runs):
    """A command's exit code and its error's message; whatever else it raises fails the test."""
    try:
        COMMAND_LINE([*arguments, "--runs-dir", str(runs)], standalone_mode=False)
    except LonghaulError as error:
        return int(error.exit_code), error.message
    return 0, ""


@pytest.fixture
def stranger(honest, tmp_path, monkeypatch):
    """A copy of the run, at work for a minute and a gigabyte and a half at most."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "drill"
    shutil.copytree(honest, folder)
    (folder / "nodes.jsonl").write_bytes(b"")

    def too_long(*_):
        raise AssertionError(f"no end within {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MOST_GROWTH_KB
    signal.alarm(DEADLINE_S)
    yield folder
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most


def withstand(folder, named="", commands=tuple(COMMANDS)):
    """Every command reads this folder, or says in a line what is wrong; codes by command."""
    codes = {}
    for name in commands:
        arguments = COMMANDS[name]
        code, message = give(arguments, folder.parent)
        assert code in (0, 2, 3), f"{name} ends with {code}: {message}"
        if code:
            in_short = message if " problem" not in message else message.partition("\n")[0]
            assert "\n" not in in_short, f"{name}: {message}"
            assert named in message or "drill" in message, f"{name}: {message}"
            assert len(in_short) < 1000
        codes[name] = code
    return codes


def a_reader(file, content):
    """Of the commands that read this file, another one for each content: all have their turn."""
    commands = FILES[file]
    return commands[[*CONTENTS].index(content) % len(commands)]


every_content = pytest.mark.parametrize("content", CONTENTS)
every_file = pytest.mark.parametrize("file", FILES)


@every_content
@every_file
def test_no_file_of_a_run_can_be_such_that_reading_it_ends_badly(stranger, file, content):
    CONTENTS[content](stranger / file)
    withstand(stranger, Path(file).name, (a_reader(file, content),))


@pytest.mark.slow
@every_content
@every_file
def test_no_file_of_a_run_can_be_such_that_any_command_ends_badly(stranger, file, content):
    CONTENTS[content](stranger / file)
    withstand(stranger, Path(file).name, FILES[file])


def test_every_reader_of_a_file_has_its_turn():
    for file, commands in FILES.items():
        assert {a_reader(file, content) for content in CONTENTS} == set(commands)


def test_the_file_that_is_wrong_is_named(stranger):
    for file in ("run.json", "asked.json", "checkpoints/step-4/metadata.json"):
        whole = (stranger / file).read_bytes()
        (stranger / file).write_bytes(DEEP)
        arguments = [*COMMANDS["sample"], "--step", "4"]
        code, message = give(arguments, stranger.parent)
        assert code == 2
        assert file in message
        (stranger / file).write_bytes(whole)
    assert give(COMMANDS["sample"], stranger.parent) == (0, "")


TOML = {
    "deep": b"x = " + DEEP,
    "a dotted key of 100,000 parts": b"a" + b".a" * 100_000 + b" = 1",
    "tables in tables": b"x = " + b"{a=" * 100_000,
    "5,000 digits": b"[optim]\nlr = " + b"9" * 5000,
    "10^30 layers": b"[model]\nlayers = 1" + b"0" * 30,
    "infinite": b"[optim]\nlr = inf\n[recover]\nlr_factor = nan",
    "an escape sequence": b"[recover]\n'\x1b]0;x\x07' = 1",
}


@pytest.mark.parametrize("content", [*TOML, *(name for name in CONTENTS if " for " not in name)])
def test_a_recipe_in_a_runs_folder_is_read_as_strictly(stranger, content):
    """The recipe of a run that somebody hands over, shown or taken as a policy."""
    recipe = stranger / "recipe.toml"
    if content in TOML:
        recipe.write_bytes(TOML[content])
    else:
        CONTENTS[content](recipe)
    for options in (["--policy", str(recipe)], ["--detectors", str(recipe)]):
        code, message = give(["replay", "drill", *options], stranger.parent)
        assert code == 2
        assert "recipe.toml" in message or "lr_factor" in message
    with pytest.raises(LonghaulError, match="recipe") as refused:
        COMMAND_LINE(["recipe", "show", str(recipe)], standalone_mode=False)
    assert refused.value.exit_code == 2
    if content in ("deep", "a pipe", "8 GB of nothing"):  # the others do not even open it
        withstand(stranger)


EVENTS, STEPS = "journal/000001.pilot.events.jsonl", "journal/000001.pilot.jsonl"
FIRST = {"record": "event", "kind": "note", "attempt": 1, "segment": "1.00", "step": 1, "data": {}}
A_STEP = {
    "record": "step", "attempt": 1, "segment": "1.00", "step": 5, "draw": 0, "next_draw": 16,
    "time": 1.8e9, "loss": 1.0, "gradient_norm": 1.0, "learning_rate": 0.1, "sequences": 16,
    "sequence_length": 32,
}  # fmt: skip


def append(file, *records):
    def to(folder):
        with (folder / file).open("ab") as lines:
            for record in records:
                made = record if isinstance(record, bytes) else json.dumps(record).encode()
                lines.write(made + b"\n")

    return to


def beside(name, *records):
    """A file of the journal of another attempt."""
    return append(f"journal/{name}", *records)


def linked(path, target):
    def to(folder):
        if (folder / path).is_dir():
            shutil.rmtree(folder / path)
        (folder / path).symlink_to(target)

    return to


def changed(file, path, value):
    """A JSON file with one value changed."""

    def to(folder):
        body = json.loads((folder / file).read_bytes())
        table, (*parents, last) = body, path.split(".")
        for part in parents:
            table = table.setdefault(part, {})
        table[last] = value
        (folder / file).write_text(json.dumps(body))

    return to


def junk_in_every_event(value):
    """Every kind of event and decision again, with this in place of everything it tells."""

    def to(folder):
        lines = [json.loads(line) for line in (folder / EVENTS).read_bytes().splitlines()]
        kinds = ("recover", "set", "skip", "unset", "checkpoint-health", "cause", "checkpoint",
                 "rolled-back", "machine-differs", "attempt-began", "node-probed", "finished",
                 "evaluation", "attempt-ended", "warning", "checkpoint-failed")  # fmt: skip
        keys = {key for line in lines for key in line.get("data", {})} | {
            "actions", "cause", "rollback", "skip", "set", "old", "reset", "poison", "price",
            "verdict", "path", "value", "begin", "end", "difference", "rungs", "nodes", "message",
            "node", "node_parts", "from_step", "reached", "seconds_since_save", "size_bytes",
        }  # fmt: skip
        append(
            EVENTS,
            *({**FIRST, "record": record, "kind": kind, "time": 1.8e9, "who": "policy",
               "reason": "", "data": dict.fromkeys(keys, value)}
              for kind in kinds for record in ("event", "decision")),
        )(folder)  # fmt: skip

    return to


ODDITIES = {
    "a time beyond all calendars": append(EVENTS, {**FIRST, "time": 1e300}),
    "a time before all": append(STEPS, {**A_STEP, "time": -1e18}),
    "a time as text": append(EVENTS, {**FIRST, "time": "noon"}),
    "a step of 10^18": append(STEPS, {**A_STEP, "step": 10**18}),
    "a step of 10^400": append(STEPS, {**A_STEP, "step": 10**400}),
    "a step below zero": append(STEPS, {**A_STEP, "step": -(10**15)}),
    "a step as text": append(STEPS, {**A_STEP, "step": "5"}),
    "10^300 seconds": append(STEPS, {**A_STEP, "seconds": {"training": 1e300}}),
    "no seconds but text": append(STEPS, {**A_STEP, "seconds": "all"}),
    "10^18 sequences": append(STEPS, {**A_STEP, "sequences": 10**18, "sequence_length": 10**18}),
    "gauges of a million layers": append(STEPS, {**A_STEP, "gauges": {"x": [0.0] * 10**5}}),
    "gauges of no layers": append(STEPS, {**A_STEP, "gauges": {"x": [], "y": [[1]]}}),
    "a segment as a list": append(STEPS, {**A_STEP, "segment": ["1.00"]}),
    "a severity with a tag": append(
        EVENTS, {**FIRST, "record": "finding", "severity": '"><script>', "first_step": 1,
                 "first_draw": 0, "sentence": "x", "time": 1.8e9}),
    "an infinite line": append(EVENTS, b'{"record":"event","kind":"' + b"x" * (20 << 20)),
    "deep lines": append(EVENTS, *[b'{"record":"event","data":' + DEEP + b"}"] * 8),
    "not even bytes of text": append(EVENTS, *[os.urandom(99) for _ in range(999)]),
    "a decision of nothing": append(EVENTS, {**FIRST, "record": "decision", "kind": "recover",
                                             "time": 1.8e9, "who": "x", "reason": ""}),
    "another alphabet's number": beside("00000\u0663.pilot.jsonl", A_STEP),
    "an attempt of 200 digits": beside("9" * 200 + ".pilot.jsonl", A_STEP),
    "one attempt by two names": beside("0000001.pilot.jsonl", A_STEP),
    "a folder for a journal": lambda folder: (folder / "journal/000002.pilot.jsonl").mkdir(),
    "a pipe for a journal": lambda folder: os.mkfifo(folder / "journal/000002.pilot.events.jsonl"),
    "a pipe for a lease": lambda folder: os.mkfifo(folder / "lease/000009.json"),
    "a pipe for tensors": lambda folder: [
        (path.unlink(), os.mkfifo(path))
        for path in (folder / "checkpoints/step-4").glob("*.safetensors")
    ],
    "a header of 2^60 bytes": lambda folder: [
        path.write_bytes((1 << 60).to_bytes(8, "little"))
        for path in (folder / "checkpoints/step-4").glob("*.safetensors")
    ],
    "a journal that is itself": linked("journal", "journal"),
    "segments that are the run": linked("segments", "."),
    "checkpoints that are the run": linked("checkpoints", ".."),
    "a step of 10^30": lambda folder: (folder / f"checkpoints/step-{10**30}").mkdir(),
    "a width of 10^12": changed("asked.json", "values.model.width", 10**12),
    "10^12 layers": changed("asked.json", "values.model.layers", 10**12),
    "a context of 10^12": changed("asked.json", "values.model.context", 10**12),
    "10^12 heads": changed("asked.json", "values.model.heads", 10**12),
    "10^12 threads": changed("asked.json", "values.machine.threads", 10**12),
    "text that is the run": changed("text.json", "folder", "."),
    "text in /proc": changed("text.json", "folder", "/proc/self"),
    "options that are none": changed("asked.json", "options", {"a": [1]}),
    "a parent that is a child": changed("segments/1.00/settings.json", "parent", "1.00"),
    "a difference of one": changed("segments/1.00/settings.json", "difference", {"a": [1]}),
    "settings of the wrong kind": changed("segments/1.00/settings.json", "settings", [1, 2]),
    "an opening in the year 10^9": changed("segments/1.00/settings.json", "opened", 1e18),
    "an attempt as text": changed("segments/1.00/settings.json", "attempt", "one"),
    "a created of text": changed("run.json", "created", "yesterday"),
    **{f"{value!r} in every event": junk_in_every_event(value)
       for value in (None, "x", -1, 1e308, [], [[1, 2]], {"a": {}}, True, 10**17)},
}  # fmt: skip


def some_commands(oddity):
    """A sixth of them, other ones for the next: each command meets a sixth of what is told."""
    return [*COMMANDS][[*ODDITIES].index(oddity) % 6 :: 6]


every_oddity = pytest.mark.parametrize("oddity", ODDITIES)


@every_oddity
def test_whatever_is_told_there_a_command_answers_or_says_why_not(stranger, oddity):
    ODDITIES[oddity](stranger)
    withstand(stranger, commands=some_commands(oddity))


@pytest.mark.slow
@every_oddity
def test_whatever_is_told_there_every_command_answers_or_says_why_not(stranger, oddity):
    ODDITIES[oddity](stranger)
    withstand(stranger)


def test_zeros_after_a_power_cut_are_no_damage(stranger, capsys):
    for file in (EVENTS, STEPS):
        with (stranger / file).open("ab") as lines:
            lines.write(bytes(100_000))
    capsys.readouterr()
    assert set(withstand(stranger).values()) == {0}
    said = capsys.readouterr().out
    assert "finished" in said
    assert "damaged" not in said


def test_more_segments_than_any_run_has_are_refused_by_their_folder(stranger, monkeypatch):
    monkeypatch.setattr(strict, "MOST_ENTRIES", 50)
    for minor in range(60):
        (stranger / f"segments/7.{minor:02d}").mkdir()
    codes = withstand(stranger, "segments")
    assert codes["tree"] == codes["diff"] == 2


def test_a_terminal_is_told_nothing(stranger, capsys):
    wicked = "\x1b]0;title\x07\x9b2J\u202e"
    append(EVENTS, {**FIRST, "time": 1.8e9, "data": {"text": wicked, "who": wicked}})(stranger)
    changed("segments/1.00/settings.json", "reason", wicked)(stranger)
    withstand(stranger)
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(capsys.readouterr().out)
