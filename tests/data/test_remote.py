import functools
import hashlib
import http.server
import sys
import threading

import fsspec
import pytest

from longhaul.core.errors import DataError, RecipeError
from longhaul.data.remote import fetch

CONTENT = b'{"text": "one"}\n{"text": "two"}\n'
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        if "truncated" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)
            return
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(CONTENT)
    (folder / "truncated.jsonl").write_bytes(CONTENT)
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.requests = []
        httpd.folder = folder
        httpd.url = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        httpd.stop = lambda: (httpd.shutdown(), thread.join(10))
        yield httpd
        httpd.stop()


def leftovers(folder):
    return [p.name for p in folder.rglob("*") if p.is_file()] if folder.exists() else []


def test_a_file_is_fetched_once_and_reused_when_the_server_is_gone(server, tmp_path):
    said = []
    (first,) = fetch(f"{server.url}/a.jsonl", tmp_path / "d", said.append)
    assert first.path.read_bytes() == CONTENT
    assert (first.name, first.sha256, first.size) == ("a.jsonl", SHA256, len(CONTENT))
    assert first.version  # the server's Last-Modified
    server.stop()
    assert fetch(f"{server.url}/a.jsonl", tmp_path / "d", said.append, SHA256) == [first]
    assert server.requests == ["/a.jsonl"]
    assert f"fetched {server.url}/a.jsonl" in said[0]
    assert "reusing the copy" in said[1]


def test_another_hash_is_refused_with_both_hashes_and_nothing_is_kept(server, tmp_path):
    with pytest.raises(DataError) as raised:
        fetch(f"{server.url}/a.jsonl", tmp_path / "d", print, "0" * 64)
    assert SHA256 in raised.value.message
    assert "0" * 64 in raised.value.message
    assert leftovers(tmp_path / "d") == []


def test_a_copy_of_another_hash_is_fetched_anew(server, tmp_path):
    (old,) = fetch(f"{server.url}/a.jsonl", tmp_path / "d", print)
    (server.folder / "a.jsonl").write_bytes(b"new")
    expected = hashlib.sha256(b"new").hexdigest()
    (new,) = fetch(f"{server.url}/a.jsonl", tmp_path / "d", print, expected)
    assert (new.path, new.sha256) == (old.path, expected)
    assert new.path.read_bytes() == b"new"


def test_a_copy_that_lost_bytes_is_fetched_anew(server, tmp_path):
    (item,) = fetch(f"{server.url}/a.jsonl", tmp_path / "d", print)
    item.path.write_bytes(CONTENT[:5])
    (again,) = fetch(f"{server.url}/a.jsonl", tmp_path / "d", print)
    assert again.path.read_bytes() == CONTENT


def test_a_missing_file_is_not_found(server, tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl.*not found"):
        fetch(f"{server.url}/none.jsonl", tmp_path / "d", print)


def test_a_truncated_download_is_refused_and_nothing_is_kept(server, tmp_path):
    with pytest.raises(DataError, match="ended in the middle"):
        fetch(f"{server.url}/truncated.jsonl", tmp_path / "d", print)
    assert leftovers(tmp_path / "d") == []


def test_an_unreachable_host_is_named_as_such(server, tmp_path):
    server.stop()
    server.server_close()
    with pytest.raises(DataError, match=r"cannot be fetched.*Connect"):
        fetch(f"{server.url}/a.jsonl", tmp_path / "d", print)


def test_a_key_in_the_address_is_not_shown_or_kept(server, tmp_path):
    said = []
    fetch(f"{server.url}/a.jsonl?token=secret", tmp_path / "d", said.append)
    kept = b"".join(p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file())
    assert "secret" not in "".join(said)
    assert b"secret" not in kept


def test_an_error_is_told_without_the_key_in_its_address(server, tmp_path):
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be fetched") as refused:
        fetch(f"{server.url}/gone.jsonl?token=secret", tmp_path / "d", print)
    assert "secret" not in str(refused.value)


def test_unknown_formats_and_schemes_are_refused_before_anything_is_fetched(server, tmp_path):
    with pytest.raises(DataError, match="no reader"):
        fetch(f"{server.url}/a.png", tmp_path / "d", print)
    with pytest.raises(DataError, match="s4://"):
        fetch("s4://bucket/a.jsonl", tmp_path / "d", print)
    assert server.requests == []


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    # Another test may have used it: fsspec remembers classes by scheme.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(DataError) as raised:
        fetch("s3://bucket/a.jsonl", tmp_path / "d", print)
    assert raised.value.remedy == "pip install 'longhaul[s3]'"


def test_a_back_end_that_ends_early_without_a_word_is_refused(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(memory, "store", {})
    monkeypatch.setattr(memory, "pseudo_dirs", [""])
    memory.pipe("/a.jsonl", CONTENT)
    monkeypatch.setattr(type(memory), "info", lambda *_, **__: {"type": "file", "size": 1000})
    with pytest.raises(DataError, match=f"{len(CONTENT)} of 1,000 bytes came"):
        fetch("memory://a.jsonl", tmp_path / "d", print)
    assert leftovers(tmp_path / "d") == []


def test_folders_and_globs_of_a_file_system_come_with_their_readable_files(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in ("a.jsonl", "sub/b.txt", "picture.png"):
        memory.pipe(f"/set/{name}", name.encode())
    try:
        folder = fetch("memory://set", tmp_path / "d", print)
        assert [item.name for item in folder] == ["a.jsonl", "sub/b.txt"]
        assert [item.path.read_bytes() for item in folder] == [b"a.jsonl", b"sub/b.txt"]
        (globbed,) = fetch("memory://set/*.jsonl", tmp_path / "d", print)
        assert globbed.name == "a.jsonl"
        with pytest.raises(RecipeError, match="one hash fits one file"):
            fetch("memory://set/", tmp_path / "d", print, SHA256)
        with pytest.raises(DataError, match="no file there"):
            fetch("memory://set/*.gz", tmp_path / "d", print)
        memory.store.clear()
        assert fetch("memory://set", tmp_path / "d", print) == folder
    finally:
        memory.store.clear()


def test_tokens_are_fetched_as_tokens_and_text_as_text(server, tmp_path):
    (server.folder / "x.bin").write_bytes(b"\1\0\2\0")
    with pytest.raises(DataError, match="no reader for this kind of file"):
        fetch(f"{server.url}/x.bin", tmp_path / "d", str)
    with pytest.raises(DataError, match="no reader for this kind of file"):
        fetch(f"{server.url}/a.jsonl", tmp_path / "d", str, wanted="tokens")
    (file,) = fetch(f"{server.url}/x.bin", tmp_path / "d", str, wanted="tokens")
    assert file.path.read_bytes() == b"\1\0\2\0"


def test_a_folder_of_shards_is_fetched_without_what_lies_beside_them(tmp_path):
    memory = fsspec.filesystem("memory")
    for name in ("train_1.bin", "val_0.bin", "x.idx", "README.md", "a.jsonl"):
        memory.pipe(f"/shards/{name}", b"\1\0")
    try:
        found = fetch("memory://shards", tmp_path / "d", str, wanted="tokens")
        assert [file.name for file in found] == ["train_1.bin", "val_0.bin", "x.idx"]
    finally:
        memory.rm("/shards", recursive=True)
