"""The back-ends of `hf://` and `s3://`, against servers of our own on this machine."""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from longhaul.core.errors import DataError
from longhaul.data.remote import fetch

CONTENT = b'{"text": "one"}\n'


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's interface as reading one data set takes."""

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        file = {"type": "file", "path": "a.jsonl", "size": len(CONTENT), "oid": "a" * 40}
        if "/resolve/" in self.path:
            self.reply(200, CONTENT)
        elif "/paths-info/" in self.path or "/tree/" in self.path:
            self.reply(200, json.dumps([file]).encode())
        elif self.path.startswith("/api/datasets/us/set"):
            self.reply(200, json.dumps({"id": "us/set", "sha": "b" * 40, "siblings": []}).encode())
        else:
            self.reply(404, b"{}")

    do_GET = do_POST = do_HEAD = answer

    def reply(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    pytest.importorskip("huggingface_hub")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


FETCH = """
import sys
from pathlib import Path
from longhaul.data.remote import fetch
for address in ("hf://datasets/us/set/a.jsonl", "hf://datasets/us/set"):
    (item,) = fetch(address, Path(sys.argv[1]), print)
    print(item.name, item.version, item.path.read_bytes())
try:
    fetch("hf://datasets/us/none/a.jsonl", Path(sys.argv[1]), print)
except Exception as error:
    print(error)
"""


def test_hf_files_and_folders(hub, tmp_path):
    # A process of its own: huggingface_hub reads HF_ENDPOINT once, when it is imported.
    ended = subprocess.run(
        [sys.executable, "-c", FETCH, str(tmp_path)],
        env=os.environ | {"HF_ENDPOINT": hub, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"a.jsonl {'a' * 40} {CONTENT}") == 2
    assert "hf://datasets/us/none/a.jsonl: cannot be fetched" in ended.stdout


@pytest.fixture
def bucket(monkeypatch):
    moto = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "NO_PROXY": "127.0.0.1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("bucket")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_s3_files_folders_and_globs(bucket, tmp_path):
    bucket.pipe(
        {"bucket/set/a.jsonl": CONTENT, "bucket/set/b/c.txt": b"x", "bucket/set/d.png": b""}
    )
    folder = fetch("s3://bucket/set", tmp_path, print)
    assert [(item.name, item.path.read_bytes()) for item in folder] == [
        ("a.jsonl", CONTENT),
        ("b/c.txt", b"x"),
    ]
    assert all(item.version for item in folder)
    for address in ("s3://bucket/set/a.jsonl", "s3://bucket/set/*.jsonl"):
        assert [item.sha256 for item in fetch(address, tmp_path, print)] == [folder[0].sha256]
    with pytest.raises(DataError, match="not found"):
        fetch("s3://bucket/set/none.jsonl", tmp_path, print)
    with pytest.raises(DataError, match="not found"):
        fetch("s3://bucket/nothing", tmp_path, print)
