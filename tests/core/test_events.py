"""Every kind of event is a member of `EventKind`, and says what its data carries."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import longhaul
from longhaul.core import events
from longhaul.core.events import EventKind
from longhaul.core.records import Event, from_line, to_line

SOURCE = Path(longhaul.__file__).parent
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
ALSO_OTHER_THINGS = {"out-of-memory"}
"""Words that are also the name of a cause; they are looked for as an event's kind only."""


def test_every_kind_says_when_it_is_written_and_what_its_data_carries() -> None:
    (kinds,) = [n for n in ast.parse(Path(events.__file__).read_text()).body if hasattr(n, "bases")]
    body = kinds.body[1:]
    members = [node.targets[0].id for node in body if isinstance(node, ast.Assign)]
    assert members == list(EventKind.__members__)
    for member, after in zip(body[::2], body[1::2], strict=True):
        assert isinstance(member, ast.Assign)
        assert isinstance(after.value.value, str), member.targets[0].id
        assert after.value.value.endswith("."), member.targets[0].id


@pytest.mark.parametrize("kind", [EventKind.ROLLED_BACK, "rolled-back", "of another version"])
def test_a_kind_is_its_word_on_disk_and_an_unknown_one_is_read(kind) -> None:
    line = to_line(Event(kind=kind, attempt=1, time=0.0))
    assert json.loads(line)["kind"] == str(kind)
    assert from_line(line).kind == kind


def _bare_kinds(tree: ast.AST) -> Iterator[ast.Constant]:
    """String constants that are an event's kind: unmistakable words, and any in its place."""
    words = {kind.value for kind in EventKind}
    for node in ast.walk(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Constant) and "-" in str(node.value):
            found = [] if node.value in ALSO_OTHER_THINGS else [node]
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute):
            of = getattr(node.left.value, "id", "")
            if node.left.attr == "kind" and of in ("event", "e", "record", "answer"):
                found = [x for c in node.comparators for x in (c, *getattr(c, "elts", ()))]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("tell", "tell_durably", "_event"):
                found = node.args[:1]
            elif name == "Event":
                found = [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
        yield from (x for x in found if isinstance(x, ast.Constant) and x.value in words)


@pytest.mark.parametrize("room", ROOMS)
def test_no_kind_stands_as_a_bare_string(room) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        if path.name != "events.py":
            bare = {(c.lineno, c.value) for c in _bare_kinds(ast.parse(path.read_text()))}
            assert not bare, path
