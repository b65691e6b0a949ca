"""A password and a signature in addresses: they work, and are to be found nowhere afterwards."""

import base64
import http.server
import shutil
import threading

import pytest

from longhaul.core.records import StepRecord

PASSWORD, SIGNATURE, TOKEN = "hunter2-of-anna", "c2lnbmF0dXJl-7711", "tok-9f9f9f9f"
SECRETS = (PASSWORD, SIGNATURE, TOKEN)
TEXT = "".join(f'{{"text": "the {n} of {n * n} and {n % 7}"}}\n' for n in range(4000)).encode()


class Guarded(http.server.BaseHTTPRequestHandler):
    """Gives a text to who knows the password and has a signature, and an error to others."""

    def do_GET(self):
        given = base64.b64encode(f"anna:{PASSWORD}".encode()).decode()
        allowed = self.headers.get("Authorization") == f"Basic {given}"
        if not allowed or f"sig={SIGNATURE}" not in self.path or "gone" in self.path:
            self.send_response(404 if "gone" in self.path else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(TEXT)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def own(room):
    """A room whose prepared texts are no other test's."""
    room.prepared = room.path / "prepared"
    return room


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"anna:{PASSWORD}@127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join(10)


def found_below(*folders):
    return [
        (str(path), secret)
        for folder in folders
        for path in folder.rglob("*")
        for secret in SECRETS
        if secret in str(path) or (path.is_file() and secret.encode() in path.read_bytes())
    ]


def recipe(server, path="text.jsonl", steps=6):
    return f"""# anna's: http://{server}/{path}?sig={SIGNATURE}
extends = "drill"
name = "guarded"
[data]
sources = [{{ path = "http://{server}/{path}?sig={SIGNATURE}&key={TOKEN}" }}]
[optim.schedule]
warmup_steps = 1
[train]
steps = {steps}
[checkpoint]
remote = ["memory://anna:{PASSWORD}@store/place"]
"""


def train(room, *words):
    """Its exit code, and all it said."""
    process = room.start("train", *words)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def test_no_secret_of_an_address_is_kept_or_shown_and_the_run_goes_on(own, server):
    room = own
    file = room.path / "guarded.toml"
    file.write_text(recipe(server))
    code, said = train(room, str(file))
    assert code == 0, said
    assert "data: fetched http://127.0.0.1:" in said
    assert not [secret for secret in SECRETS if secret in said]
    assert list((room.prepared).glob("text.jsonl-*")), "named after the file, not the query"
    assert not found_below(room.runs, room.prepared)
    # Prepared text needs nothing fetched: the run goes on without its recipe.
    code, said = train(room, "guarded", "--set", "train.steps=8", "--set", "checkpoint.remote=[]")
    assert code == 0, said
    # Where it must be fetched again, the recipe's file has the secret as long as it is there.
    shutil.rmtree(room.prepared)
    code, said = train(room, "guarded", "--set", "train.steps=9")
    assert code == 0, said
    assert "data: fetched" in said
    shutil.rmtree(room.prepared)
    file.rename(file.with_suffix(".gone"))
    code, said = train(room, "guarded", "--set", "train.steps=10")
    assert code == 2, said
    assert "http://127.0.0.1" in said
    assert "is not kept with the run" in said
    code, said = train(
        room, "guarded", "--data", f"http://{server}/text.jsonl?sig={SIGNATURE}&key={TOKEN}"
    )
    assert code == 0, said
    shown = "".join(room.run(*words, "guarded")[1] for words in (["log"], ["diff"], ["tree"]))
    assert not [secret for secret in SECRETS if secret in shown + said]
    assert not found_below(room.runs, room.prepared)


def test_what_a_server_refuses_is_told_without_the_secret(own, server):
    room = own
    file = room.path / "guarded.toml"
    file.write_text(recipe(server, "gone.jsonl"))
    code, said = train(room, str(file))
    assert code == 3, said
    assert "gone.jsonl: cannot be fetched" in said  # aiohttp's own words repeat the address
    assert not [secret for secret in SECRETS if secret in said]
    assert not found_below(room.runs)


def on_a_node(*command):
    """Options for a node that is reached with a command; the one here passes no secrets on."""
    words = ", ".join(map(repr, ("env", *command)))
    return "--set", f"supervise.node=[{{name='a', command=[{words}]}}]"


WITHOUT_ENVIRONMENT = on_a_node("-u", "LONGHAUL_ADDRESSES")


def test_secrets_that_do_not_reach_a_node_end_the_start_and_the_way_out_is_named(own, server):
    """`ssh` passes no environment on, and everybody on a node may read a command line."""
    file = own.path / "guarded.toml"
    file.write_text(recipe(server))
    local = ("--set", "checkpoint.remote=[]")
    for options, place in ((local, "http://127.0.0.1"), ((), "memory://store/place")):
        code, said = train(own, str(file), *WITHOUT_ENVIRONMENT, *options)
        assert code == 2, said
        assert place in said
        assert "its password or signature is needed on this node" in said
        assert "${NAME}" in said
        assert "Traceback" not in said
        assert not [secret for secret in SECRETS if secret in said]
    assert not any(isinstance(record, StepRecord) for record in own.records())


@pytest.mark.slow
def test_the_ways_out_are_ways_out(own, server, monkeypatch):
    file = own.path / "guarded.toml"
    file.write_text(recipe(server))
    code, said = train(own, str(file), *on_a_node())  # a command that passes all on
    assert code == 0, said
    monkeypatch.setenv("ANNAS", PASSWORD)
    monkeypatch.setenv("SIGNED", f"sig={SIGNATURE}")
    text = recipe(server).replace(PASSWORD, "${ANNAS}").replace(f"sig={SIGNATURE}", "${SIGNED}")
    file.write_text(text.replace('"guarded"', '"named"').replace(f"&key={TOKEN}", ""))
    code, said = train(own, str(file), *WITHOUT_ENVIRONMENT)
    assert code == 0, said
    assert not [secret for secret in SECRETS if secret in said]
    assert not found_below(own.runs, own.prepared)
