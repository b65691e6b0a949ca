import json
import os

import pytest

from fakes import FakeClock
from longhaul.logbook.requests import (
    done_requests,
    pending,
    refuse,
    settle,
    submit,
)


@pytest.fixture
def clock():
    return FakeClock()


def ask(folder, clock, kind="set", **data):
    request = submit(folder, kind, data, who="anna", reason="spikes", clock=clock)
    clock.advance(1)
    return request


def test_requests_are_read_back_in_order(folder, clock):
    asked = [ask(folder, clock, path="optim.lr", value=n / 7) for n in range(5)]
    assert pending(folder) == asked


def test_requests_come_in_the_order_asked_though_the_clock_was_set_back(folder, clock):
    asked = []
    for number in range(5):
        data = {"n": number}
        asked.append(submit(folder, "set", data, who="anna", reason="", clock=clock))
        clock.advance(-3600)
    assert pending(folder) == asked


def test_a_request_of_an_older_version_does_not_say_of_which_attempt(folder, clock):
    request = ask(folder, clock)
    path = folder.requests / f"{request.id}.json"
    body = json.loads(path.read_text())
    del body["attempt"]
    path.write_text(json.dumps(body))
    (read,) = pending(folder)
    assert read.attempt is None


def test_a_settled_request_is_gone_and_settling_again_does_no_harm(folder, clock):
    first, second = ask(folder, clock), ask(folder, clock)
    settle(folder, first)
    settle(folder, first)
    assert pending(folder) == [second]


def test_a_crash_between_journal_and_removal_does_not_apply_it_twice(
    folder, clock, make_event, make_decision
):
    first, second, third = (ask(folder, clock) for _ in range(3))
    journalled = [
        make_decision(data={"path": "optim.lr", "value": 1, "request": first.id}),
        make_event("note", data={"request": second.id}),
        make_event("note"),
    ]
    assert pending(folder, done_requests(journalled)) == [third]
    assert pending(folder) == [third]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 50_000,
        b'{"id": "other", "kind": "set", "who": "a", "reason": "", "data": {}, "time": 1}',
        b'{"id": "bad", "kind": 5, "who": "a", "reason": "", "data": {}, "time": 1}',
        b'{"id": "bad", "kind": "set", "who": "a", "reason": "", "data": [], "time": 1}',
        b'{"id": "bad", "kind": "set", "who": "a", "reason": "", "data": {}, "time": "soon"}',
        b'{"id": "bad", "kind": "set"}',
        b" " * 70_000 + b"{}",
    ],
)  # fmt: skip
def test_garbage_is_moved_aside_with_its_reason(folder, clock, content):
    good = ask(folder, clock)
    (folder.requests / "bad.json").write_bytes(content)
    assert pending(folder) == [good]
    assert (folder.refused_requests / "bad.json").read_bytes() == content
    told = (folder.refused_requests / "bad.json.reason").read_text()
    assert told.startswith("not a request: ")
    assert "pydantic" not in told
    assert pending(folder) == [good]


def test_folders_pipes_and_other_files_do_not_stop_the_trainer(folder, clock):
    (folder.requests / "folder.json").mkdir()
    os.mkfifo(folder.requests / "pipe.json")
    (folder.requests / "README").write_text("hello")
    (folder.requests / ".half.json.tmp").write_text("{")
    good = ask(folder, clock)
    assert pending(folder) == [good]
    assert (folder.requests / ".half.json.tmp").exists()
    assert not (folder.requests / "pipe.json").exists()


def test_no_requests_folder_is_no_request(folder):
    folder.requests.rmdir()
    assert pending(folder) == []


def test_a_refused_request_is_kept_with_the_reason(folder, clock):
    request = ask(folder, clock, path="model.width", value=2)
    refuse(folder, request, "model.width never changes in a run")
    assert pending(folder) == []
    kept = folder.refused_requests / f"{request.id}.json"
    assert json.loads(kept.read_text())["data"]["path"] == "model.width"
    assert "never changes" in kept.with_name(f"{kept.name}.reason").read_text()


def test_a_reason_in_another_encoding_can_be_submitted(folder, clock):
    submit(folder, "note", {"text": "caf\udce9"}, who="a", reason="\udce9", clock=clock)
    assert [found.reason for found in pending(folder)] == ["?"]


def test_two_requests_of_one_moment_are_two(folder, clock):
    made = {submit(folder, "stop", {}, who="a", reason="", clock=clock).id for _ in range(20)}
    assert len(made) == 20
