"""The hook for incidents: a real command, and a real server on loopback."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fakes import FakeClock
from longhaul.config.train import AlertSection
from longhaul.core.addresses import forget_addresses, sealed
from longhaul.interop.trackers.alerts import Alerts, CallFailed, post, run_command
from longhaul.interop.trackers.mirror import Mirror


@contextmanager
def server(answers=(200,), asked=()):
    """A webhook on loopback: its address, and what it was sent."""
    came, codes, asked = [], list(answers), [] if asked == () else asked

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            came.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            code = codes.pop(0) if len(codes) > 1 else codes[0]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/hook/secret-token", came
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def hooked(run, said=None, clock=None, since=0.0, within_s=30.0, **settings):
    """A mirror as a new process makes it."""
    settings = AlertSection.model_validate(settings)
    say = ([] if said is None else said).append
    target = Alerts(settings, "alpha", since, clock or FakeClock(), say, within_s)
    return Mirror(run.folder, target, run.folder.trackers / "alert.json", print)


def test_a_command_reads_each_incident_as_json_once(run, tmp_path):
    told, clock = tmp_path / "told", FakeClock()
    command = ("sh", "-c", f"cat >> {told}; echo >> {told}")
    run.begin(0)
    run.steps(2)
    mirror = hooked(run, clock=clock, command=command)
    mirror.look()
    assert not told.exists()
    run.finding()
    mirror.look()
    mirror.look()
    clock.advance(1.0)
    hooked(run, clock=clock, command=command).look()
    run.event("paused", reason="the disk is full")
    run.event("attempt-ended", reason="stopped: it diverged")
    hooked(run, clock=clock, command=command).end(17)
    bodies = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(body["kind"], body["what"]) for body in bodies] == [
        ("finding", "divergence"), ("event", "paused"), ("end", "17"),
    ]  # fmt: skip
    assert bodies[0]["text"] == "longhaul alpha, step 2: the loss rises"
    assert (bodies[0]["run"], bodies[0]["step"], bodies[0]["attempt"]) == ("alpha", 2, 1)
    assert "a person must look" in bodies[2]["text"]
    assert "Attempt 1 ended at step 2: stopped: it diverged" in bodies[2]["text"]


def test_a_webhook_is_posted_to_and_what_is_too_much_comes_in_the_next(run):
    clock = FakeClock()
    with server() as (address, came):
        mirror = hooked(run, clock=clock, webhook=address, per_hour=2)
        run.begin(0)
        for _ in range(5):
            run.steps(1)
            run.finding()
            mirror.look()
        assert [body["step"] for body in came] == [1]
        clock.advance(3600.0)
        mirror.look()
    assert [(body["step"], body["suppressed"]) for body in came] == [(1, 0), (5, 3)]


def test_a_full_disk_does_not_have_anybody_called_again_and_again(run, monkeypatch):
    clock = FakeClock()
    with server() as (address, came):
        run.begin(0)
        run.steps(2)
        mirror = hooked(run, clock=clock, webhook=address, per_hour=12)
        run.event("checkpoint-failed", 2, message="no space left on the device")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("longhaul.interop.trackers.mirror.write_json", full)
        for _ in range(6):
            mirror.look()
            clock.advance(2)
        assert len(came) == 1
        monkeypatch.undo()
        mirror.look()
        assert len(came) == 1


def test_what_fails_is_told_once_and_shows_no_secret(run):
    said, clock = [], FakeClock()
    with server((500, 500, 302, 200)) as (address, came):
        mirror = hooked(run, said, clock, webhook=address)
        run.begin(0)
        for _ in range(4):
            run.steps(1)
            run.finding()
            mirror.look()
    assert len(came) == 4
    assert len(said) == 2
    assert "answered 500" in said[0]
    assert "works again" in said[1]
    assert "secret-token" not in "".join(said)


def test_nobody_is_called_for_what_was_before_this_start(run):
    run.troubled()
    with server() as (address, came):
        hooked(run, since=run.now + 1.0, webhook=address).look()
        assert came == []


def test_an_interrupt_by_a_person_calls_nobody(run):
    with server() as (address, came):
        hooked(run, webhook=address).end(130)
        assert came == []
        hooked(run, webhook=address).end(None)
    assert [body["what"] for body in came] == ["died"]


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path):
    mark = tmp_path / "mark"
    slow = f"(sleep 0.5; touch {mark}) & sleep 60"
    began = time.monotonic()
    with pytest.raises(CallFailed, match=r"took longer than 0\.1 s"):
        run_command(("sh", "-c", slow), b"{}", 0.1)
    assert time.monotonic() - began < 30
    time.sleep(0.6)  # long enough for what must not come
    assert not mark.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("no-such-program",), "cannot be started"),
        (("sh", "-c", "echo no token >&2; exit 3"), r"ended with 3 \(no token\)"),
    ],
)
def test_a_command_that_fails_says_how(command, words):
    with pytest.raises(CallFailed, match=words):
        run_command(command, b"{}", 30.0)


def test_a_large_incident_that_a_command_does_not_read_hurts_nobody():
    run_command(("true",), b"x" * 1_000_000, 30.0)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/x", "http://no.such.host.invalid/x", "https://h/${NOT_SET_X}"]
)
def test_a_webhook_that_is_not_there_is_a_failed_call(address):
    with pytest.raises(CallFailed):
        post(address, b"{}", 5.0)


def test_a_server_that_does_not_answer_is_given_up():
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(CallFailed, match="cannot be reached"):
            post(f"http://127.0.0.1:{silent.getsockname()[1]}/", b"{}", 0.2)


def test_the_environment_completes_an_address(monkeypatch):
    with server() as (address, came):
        monkeypatch.setenv("HOOK_TOKEN", "secret-token")
        post(address.replace("secret-token", "${HOOK_TOKEN}"), b'{"a": 1}', 5.0)
    assert came == [{"a": 1}]


def test_a_secret_in_an_address_is_kept_out_of_the_run_and_still_sent():
    asked = []
    with server(asked=asked) as (address, _):
        kept = sealed(f"{address}?signature=c2lnbmVk")
        try:
            assert "c2lnbmVk" not in kept
            post(kept, b"{}", 5.0)
        finally:
            forget_addresses()
        assert asked == ["/hook/secret-token?signature=c2lnbmVk"]
        with pytest.raises(CallFailed) as failed:
            post(kept, b"{}", 5.0)
    assert "secret-token" not in str(failed.value)
