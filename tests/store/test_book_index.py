import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.store.manifest import FileEntry, RefusedCheckpoint
from longhaul.store.remote_log import (
    Edition,
    Index,
    host_name,
    is_page,
    parse_index,
    place_of,
    render_index,
)

EDITION = Edition(3, 7, "9f3a61c2")
PAGES = (
    FileEntry("run.json", 70, "a" * 64),
    FileEntry("segments/1.00/settings.json", 900, "b" * 64),
    FileEntry("journal/000003.pilot.events.jsonl", 12_000, "c" * 64),
)
INDEX = Index(edition=EDITION, created=1.5e9, host="node-a", time=1.6e9, pages=PAGES)


def test_an_index_is_what_was_written() -> None:
    assert parse_index(render_index(INDEX), EDITION, "x") == INDEX
    assert Edition.parse(EDITION.path.rpartition("/")[2]) == EDITION
    assert INDEX.size_bytes == 12_970


def test_a_later_attempt_is_newer_than_any_edition_of_an_earlier_one() -> None:
    assert Edition(4, 1, "00000000") > Edition(3, 999, "ffffffff")
    assert Edition(10, 1, "00000000") > Edition(9, 1, "00000000")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_byte_anywhere_is_found(data: st.DataObject) -> None:
    content = bytearray(render_index(INDEX))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RefusedCheckpoint):
        parse_index(bytes(content), EDITION, "x")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(render_index(INDEX)) - 1))
def test_half_an_index_is_none(length: int) -> None:
    with pytest.raises(RefusedCheckpoint):
        parse_index(render_index(INDEX)[:length], EDITION, "x")


def test_an_index_does_not_pass_for_another_edition() -> None:
    for other in (Edition(4, 7, "9f3a61c2"), Edition(3, 8, "9f3a61c2"), Edition(3, 7, "00000000")):
        with pytest.raises(RefusedCheckpoint, match="another edition"):
            parse_index(render_index(INDEX), other, "x")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd", "/etc/passwd", "journal/../../x", "journal/../000001.pilot.jsonl",
        "segments/1.00/../../x", "segments/../settings.json", "segments/1.00/settings.json/x",
        "journal/000001.pilot.jsonl/../x", "checkpoints/step-1/state.json", "lease/000001.json",
        "requests/x.json", "journal/.reserve", "journal/1.pilot.jsonl", "run.json\n", "", ".",
        "segments/1.00/settings.json\n", "journal/000001.pilot.jsonl\n", "RUN.JSON", "a\x00b",
        "segments/٣.٣/settings.json", "journal//000001.pilot.jsonl", "./run.json",
    ],
)  # fmt: skip
def test_what_is_no_page_of_a_book_is_refused_by_name(name: str) -> None:
    assert not is_page(name)
    hostile = replace(INDEX, pages=(FileEntry(name, 1, "d" * 64),))
    with pytest.raises(RefusedCheckpoint, match="is not a plain file name"):
        parse_index(render_index(hostile), EDITION, "x")


def test_pages_lie_side_by_side() -> None:
    places = [place_of(page) for page in PAGES]
    assert len(set(places)) == len(PAGES)
    assert all(place.count("/") == 2 and place.startswith("book/pages/") for place in places)


@pytest.mark.parametrize("field", ["created", "time"])
@pytest.mark.parametrize("value", [-1.0, 1e300, "soon", 7, None])
def test_a_time_that_no_calendar_has_is_refused(field: str, value: object) -> None:
    broken = render_index(replace(INDEX, **{field: value}))
    with pytest.raises(RefusedCheckpoint):
        parse_index(broken, EDITION, "x")


def test_a_newer_format_is_not_guessed() -> None:
    body = json.loads(render_index(INDEX)) | {"format_version": 2}
    with pytest.raises(RefusedCheckpoint, match="format version 2"):
        parse_index(json.dumps(body).encode(), EDITION, "x")


def test_a_page_is_named_once() -> None:
    with pytest.raises(RefusedCheckpoint, match="twice"):
        parse_index(render_index(replace(INDEX, pages=PAGES[:1] * 2)), EDITION, "x")


def test_a_host_that_would_write_on_a_terminal_is_refused() -> None:
    hostile = replace(INDEX, host="\x1b[2J")
    with pytest.raises(RefusedCheckpoint, match="no machine's name"):
        parse_index(render_index(hostile), EDITION, "x")
    assert host_name("a b\x1b[é" + "x" * 99) == "a-b---" + "x" * 58
