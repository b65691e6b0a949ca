"""The board's routes: what they tell, and what they refuse."""

import json
import logging
import shutil
from asyncio import CancelledError
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.testclient import TestClient

from fakes import FakeClock
from longhaul.board import view
from longhaul.board.live_run import LiveRun
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.requests import pending
from longhaul.run.board import app as app_module
from longhaul.run.board import shelf as shelf_module
from longhaul.run.board.app import application
from longhaul.run.board.serve import _is_worth_telling
from longhaul.run.board.shelf import Shelf
from small_runs import grown

TOKEN = "a-token"
HOST = "http://127.0.0.1"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    grown(tmp_path / "runs" / "first")
    grown(tmp_path / "runs" / "group" / HOSTILE, steps=40, note=HOSTILE)
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> TestClient:
    app = application(Shelf([runs], FakeClock(1e6 + 50)), TOKEN, ["127.0.0.1"])
    return TestClient(app, base_url=HOST)


def keys(client: TestClient) -> dict[str, str]:
    return {row["name"]: row["key"] for row in client.get("/api/runs").json()}


def asked(client: TestClient, key: str, body: object, token: str = TOKEN):
    headers = {"authorization": f"Bearer {token}"}
    return client.post(f"/api/runs/{key}/requests", json=body, headers=headers)


def test_every_run_below_the_folder_is_there_with_its_figures(client):
    rows = {row["name"]: row for row in client.get("/api/runs").json()}
    assert set(rows) == {"first", HOSTILE}
    assert rows["first"]["step"] == 30
    assert rows["first"]["loss"] == pytest.approx(5 / 30)
    assert rows["first"]["state"] == "dead"
    assert rows["first"]["tokens_per_s"] == 8 * 64


def test_mfu_is_the_share_of_the_devices_peak_that_the_attempt_told(tmp_path):
    grown(tmp_path / "slow", hardware={"count": 8, "peak": 8 * 512e9, "flops_per_token": 1e9})
    grown(tmp_path / "impossible", hardware={"count": 1, "peak": 1e9, "flops_per_token": 1e9})
    shelf = Shelf([tmp_path], FakeClock())
    rows = {row["name"]: row["mfu"] for row in shelf.glances()}
    assert rows == {"slow": pytest.approx(512 / (8 * 512)), "impossible": None}


def test_a_run_that_cannot_be_read_hides_no_other(client, runs):
    (runs / "first" / "journal" / "000001.pilot.jsonl").unlink()
    (runs / "first" / "journal" / "000001.pilot.jsonl").mkdir()
    rows = {row["name"]: row for row in client.get("/api/runs").json()}
    assert rows["first"]["state"] == "unreadable"
    assert "not a plain file" in rows["first"]["why"]
    assert rows[HOSTILE]["step"] == 40


def test_a_run_whose_journal_is_damaged_or_gone_is_no_error_of_the_server(client, runs):
    key = keys(client)["first"]
    compacted = runs / "first" / "journal" / "compacted"
    compacted.mkdir()
    (compacted / "000001.parquet").write_bytes(b"PAR1 is what it begins with, and no more")
    assert client.get(f"/api/runs/{key}").status_code == 200
    steps = runs / "first" / "journal" / "000001.pilot.jsonl"
    steps.write_bytes(steps.read_bytes()[:100])
    answer = client.get(f"/api/runs/{key}")
    assert (answer.status_code, answer.json().get("cursor")) == (200, 0)
    shutil.rmtree(runs / "first")
    assert client.get(f"/api/runs/{key}").status_code in (200, 404, 422)
    assert "first" not in keys(client)
    assert client.get(f"/api/runs/{key}").status_code == 404


def test_a_page_has_the_curve_of_the_journal_and_escapes_what_people_wrote(client):
    page = client.get(f"/api/runs/{keys(client)[HOSTILE]}").json()
    loss = next(figure for figure in page["figures"] if figure["name"] == "loss")
    assert sum(len(trace["x"]) for trace in loss["traces"] if "place" in trace["meta"]) == 40
    assert page["cursor"] == 40
    told = "".join([*page["words"].values(), *(figure["section"] for figure in page["figures"])])
    assert "<img" not in told
    assert "&lt;img" in told


def test_the_page_itself_and_its_files_come_with_a_strict_policy(client):
    for path in ("/", "/static/board.js", "/static/board.css", "/static/plotly.min.js"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "unsafe-eval" not in policy


def test_steps_come_as_they_are_made(client, runs):
    key = keys(client)["first"]
    shelf = Shelf([runs], FakeClock())
    assert shelf.folder(key) is not None
    first = shelf.ask(key, lambda run: view.since(run, 28))
    assert (first["step"], first["cursor"]) == ([29, 30], 30)
    grown(runs / "first", steps=2)
    more = shelf.ask(key, lambda run: view.since(run, 30))
    assert (more["step"], more["cursor"]) == ([1, 2], 32)


@pytest.mark.parametrize("given_token", ["", "a-toke", "a-token2", "é"])
def test_nothing_is_asked_without_the_token(client, runs, given_token):
    key = keys(client)["first"]
    headers = {"authorization": f"Bearer {given_token}".encode()}
    body = {"kind": "note", "text": "hello"}
    assert client.post(f"/api/runs/{key}/requests", json=body, headers=headers).status_code == 401
    assert client.post(f"/api/runs/{key}/requests", json=body).status_code == 401
    assert pending(RunFolder(runs / "first")) == []


def test_a_board_without_a_token_takes_none(runs):
    app = application(Shelf([runs], FakeClock()), "", ["127.0.0.1"])
    client = TestClient(app, base_url=HOST)
    for token in ("", "x"):
        assert asked(client, keys(client)["first"], {"kind": "stop"}, token).status_code == 401


def test_a_note_with_the_token_is_laid_before_the_run(client, runs):
    answer = asked(client, keys(client)["first"], {"kind": "note", "text": "looks well"})
    assert answer.status_code == 200
    (request,) = pending(RunFolder(runs / "first"))
    assert (request.kind, request.data) == ("note", {"text": "looks well"})


def test_what_the_command_refuses_the_board_refuses_with_the_way_out(client, runs):
    answer = asked(client, keys(client)["first"], {"kind": "rollback", "to": 31})
    assert answer.status_code == 422
    assert "has made steps up to 30" in answer.json()["message"]
    assert pending(RunFolder(runs / "first")) == []


def test_a_page_that_a_stranger_s_name_leads_to_gets_nothing(client):
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 400


PATHS = (
    "/api/runs/{}", "/api/runs/{}/first-look", "/api/runs/{}/gauges", "/api/runs/{}/events",
    "/api/runs/{}/requests", "/static/{}", "/{}", "/api/{}",
)  # fmt: skip
NASTY = st.one_of(
    st.sampled_from(
        ["../secret.txt", "..%2f..%2fsecret.txt", "%2e%2e/secret.txt", "....//secret.txt",
         "/etc/passwd", "page.py", "__init__.py", "..", ".", "%00", "a" * 5000]
    ),
    st.text(min_size=1, max_size=40).map(lambda text: quote(text.encode("utf-8", "replace"))),
)  # fmt: skip
odd = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@odd
@given(path=st.sampled_from(PATHS), name=NASTY, method=st.sampled_from(["GET", "POST", "PUT"]))
def test_no_odd_path_is_an_error_of_ours_or_leads_out(client, path, name, method):
    headers = {"authorization": f"Bearer {TOKEN}"}
    with pytest.MonkeyPatch.context() as patch:
        # A client resolves `/api/runs/../events` by itself, and would read that stream for ever.
        patch.setattr(app_module, "EventSourceResponse", lambda stream: Response())
        answer = client.request(method, path.format(name), headers=headers)
    assert answer.status_code in (200, 400, 401, 404, 405, 415, 422), answer.text
    assert "root:" not in answer.text
    assert "secret" not in answer.text.replace("secret.txt", "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
KINDS = st.sampled_from(["note", "set", "rollback", "fork", "stop", "skip", ""]) | JSON
REQUEST = st.fixed_dictionaries(
    {"kind": KINDS},
    optional=dict.fromkeys(("text", "change", "to", "at", "changes", "reason"), JSON),
)


@odd
@given(body=REQUEST | JSON)
def test_no_odd_request_is_an_error_of_ours(client, body):
    key = keys(client)["first"]
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    content = json.dumps(body).encode()
    answer = client.post(f"/api/runs/{key}/requests", content=content, headers=headers)
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[" * 40_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"kind": "note", "text": "' + b"x" * 70_000 + b'"}', "application/json", 413),
        (b'{"kind": "note", "text": "x"}', "text/plain", 415),
        (b'{"kind": "note", "text": ""}', "application/json", 422),
    ],
)
def test_a_body_that_is_no_request_is_refused(client, runs, content, kind, status):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": kind}
    answer = client.post(
        f"/api/runs/{keys(client)['first']}/requests", content=content, headers=headers
    )
    assert answer.status_code == status
    assert pending(RunFolder(runs / "first")) == []


def test_a_folder_that_nobody_may_read_hides_no_other(client, runs, monkeypatch):
    listed = shelf_module.list_runs

    def guarded(folder: Path):
        if folder.name == "group":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(shelf_module, "list_runs", guarded)
    assert set(keys(client)) == {"first"}


def test_a_run_that_was_made_anew_under_its_name_is_read_anew(client, runs):
    key = keys(client)["first"]
    assert client.get(f"/api/runs/{key}").json()["cursor"] == 30
    shutil.rmtree(runs / "first")
    grown(runs / "first", steps=50)
    assert client.get(f"/api/runs/{key}").json()["cursor"] == 50


def test_steps_that_could_not_be_taken_in_come_with_the_next_look(client, runs, monkeypatch):
    key = keys(client)["first"]
    grown(runs / "first", steps=5)
    taken = LiveRun._append

    def full(run: LiveRun, lines: bytes) -> None:
        monkeypatch.setattr(LiveRun, "_append", taken)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LiveRun, "_append", full)
    assert client.get(f"/api/runs/{key}").json()["cursor"] == 35


def test_many_runs_stay_open_between_looks(tmp_path, monkeypatch):
    for number in range(14):
        grown(tmp_path / f"run-{number}", steps=2)
    opened: list[str] = []
    begin = LiveRun.__init__
    monkeypatch.setattr(
        LiveRun, "__init__", lambda run, folder: (opened.append(folder.name), begin(run, folder))[1]
    )
    shelf = Shelf([tmp_path], FakeClock())
    for step in range(3):
        assert len(shelf.glances()) == 14
        grown(tmp_path / "run-0", steps=step + 1)
    assert len(opened) == 14


def test_trouble_is_recent_for_an_hour_and_no_longer(tmp_path):
    folder = grown(tmp_path / "troubled")
    journal = Journal(folder, 1)
    failed = {"message": "no space left"}
    journal.append(
        Event(kind="checkpoint-failed", attempt=1, segment="1.00", time=1e6 + 60, data=failed)
    )
    journal.close()
    clock = FakeClock(1e6 + 100)
    shelf = Shelf([tmp_path], clock)
    (row,) = shelf.glances()
    assert row["trouble"]["is_recent"]
    clock.advance(3600)
    (row,) = shelf.glances()
    assert not row["trouble"]["is_recent"]


def test_many_may_look_at_once_while_runs_grow(tmp_path):
    for number in range(3):
        grown(tmp_path / f"run-{number}")
    shelf = Shelf([tmp_path], FakeClock())
    keys = [row["key"] for row in shelf.glances()]

    def look(key: str) -> int:
        at = 0
        for _ in range(8):
            assert "unreadable" not in {row["state"] for row in shelf.glances()}
            steps = shelf.ask(key, partial(view.since, cursor=at))
            assert steps["cursor"] == at + len(steps["step"])
            at = steps["cursor"]
            shelf.ask(key, lambda run: view.whole(run, shelf.clock))
            shelf.ask(key, view.gauges)
        return at

    with ThreadPoolExecutor(4) as pool:
        seen = [pool.submit(look, key) for key in keys]
        for again in range(8):
            grown(tmp_path / "run-0", steps=3, later=100.0 * (again + 1))
        assert all(at.result() >= 30 for at in seen)
    assert shelf.ask(keys[0], lambda run: run.steps_read) in (30, 54)


def test_a_question_that_the_end_of_the_server_cuts_off_is_no_error_of_its():
    def told(error, message="Exception in ASGI application"):
        given = {"msg": message, "exc_info": error and (type(error), error, None)}
        return _is_worth_telling(logging.makeLogRecord(given))

    assert not told(CancelledError("Task cancelled, timeout graceful shutdown exceeded"))
    assert not told(None, "Cancel 2 running task(s), timeout graceful shutdown exceeded")
    assert told(ZeroDivisionError())
    assert told(None, "[Errno 98] address already in use")
