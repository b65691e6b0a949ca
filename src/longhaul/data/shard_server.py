"""Shards passed between nodes: a small HTTP server on each, and the client that asks it.

Each shard has a home among the nodes (rendezvous hashing; Thaler and Ravishankar, 1998), which
reads it from the store once, when it is first asked for it. The others ask the home. Whoever gets a
shard compares its hash, so that no node need be trusted; who reaches the port can read the text.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

from longhaul.core.errors import DataError, LonghaulError, UsageError
from longhaul.core.output import Say
from longhaul.core.units import Bytes, Seconds
from longhaul.data.shard_cache import ShardCache
from longhaul.store.manifest import FileEntry
from longhaul.store.store_files import StoreFiles

T = TypeVar("T")

_CHUNK: Bytes = 1 << 20
_LOOK_EVERY_S: Seconds = 0.05
_SILENCE_S: Seconds = 600.0
"""A home fetches a shard before it answers; one that says nothing for so long is passed over."""


def home_of(sha256: str, nodes: Sequence[str]) -> str:
    """Which node reads the shard with this hash from the store; pure, and the same everywhere."""
    return max(nodes, key=lambda node: hashlib.sha256(f"{node} {sha256}".encode()).digest())


class PassedShards:
    """Shards of one text, as one node gets them: from its cache, their home, or the store.

    `nodes` are addresses such as `http://10.0.0.2:9500`, the same on every node in any order; `own`
    is this node's, or empty if it does not serve.
    """

    def __init__(
        self,
        cache: ShardCache,
        files: StoreFiles,
        nodes: Sequence[str],
        own: str,
        say: Say,
    ) -> None:
        for node in nodes:
            if urlsplit(node).scheme != "http" or not urlsplit(node).hostname:
                raise UsageError(f"{node}: no node's address", "write it like http://10.0.0.2:9500")
        self.cache = cache
        self._files = files
        self._nodes = tuple(node.rstrip("/") for node in nodes)
        self._own = own.rstrip("/")
        self._say = say

    def link(self, file: FileEntry, target: Path) -> None:
        """Let `target` be the shard; errors as of `ShardCache.link` and `StoreFiles.fetch`."""
        self.cache.link(file, target, lambda part: self._fetch(file, part))

    def use(self, file: FileEntry, opened: Callable[[Path], T]) -> T:
        """What `opened` makes of the shard in the cache before it can go; as `link`."""
        return self.cache.use(file, lambda part: self._fetch(file, part), opened)

    def path_for_peer(self, file: FileEntry) -> Path:
        """The shard's path in the cache, read from the store if it is not here: this node is its
        home, or somebody takes it for that.
        """
        return self.cache.hold(file, lambda part: self._from_store(file, part))

    def _fetch(self, file: FileEntry, part: Path) -> None:
        home = home_of(file.sha256, self._nodes) if self._nodes else self._own
        if home != self._own:
            try:
                with self._files.throttle:
                    fetch_from(home, file, part, self._files.throttle.rest)
                return
            except (OSError, http.client.HTTPException, DataError) as error:
                self._say(f"WARNING: {home} did not give {file.name} ({error}); asking the store")
        self._from_store(file, part)

    def _from_store(self, file: FileEntry, part: Path) -> None:
        with self._files.throttle:
            self._files.fetch(file.name, part, file, self._say)


def fetch_from(
    node: str,
    file: FileEntry,
    part: Path,
    rest: Callable[[Bytes, Seconds], None] = lambda size, took_s: None,
) -> None:
    """Bring a shard from a node, going on where it was cut off; `rest` after each piece, given its
    size and how long it took.

    Raises:
        OSError, HTTPException: the node does not answer, or the local medium refuses.
        DataError: it gives other bytes; what came of them is removed.
    """
    there = part.stat().st_size if part.exists() else 0
    if there > file.size_bytes:
        part.unlink()
        there = 0
    request = urllib.request.Request(f"{node}/{file.sha256}", headers={"Range": f"bytes={there}-"})
    digest = hashlib.sha256(part.read_bytes() if there else b"")
    # Nodes are reached directly, whatever proxy leads out of the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_SILENCE_S) as answer, part.open("ab") as local:
        began = time.monotonic()
        while piece := answer.read(_CHUNK):
            digest.update(piece)
            there += local.write(piece)
            rest(len(piece), time.monotonic() - began)
            began = time.monotonic()
        local.flush()
        os.fsync(local.fileno())
    if there < file.size_bytes:
        raise DataError(f"{node}: {file.name} ended after {there} of {file.size_bytes} bytes")
    if digest.hexdigest() != file.sha256:
        part.unlink()
        raise DataError(f"{node}: {file.name} has other bytes than its hash says")


@contextmanager
def serving(
    shards: PassedShards, files: Sequence[FileEntry], host: str, port: int
) -> Iterator[int]:
    """Serve these files to other nodes during the body; the port, a free one for 0. UsageError if
    it is taken.
    """
    known = {file.sha256: file for file in files}
    try:
        server = ThreadingHTTPServer((host, port), _handler(known, shards.path_for_peer))
    except OSError as error:
        raise UsageError(
            f"{host}:{port}: cannot be listened on ({error.strerror})", "give another --port"
        ) from error
    server.daemon_threads = True
    loop = partial(server.serve_forever, poll_interval=_LOOK_EVERY_S)
    thread = Thread(target=loop, name="serve shards", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(
    known: Mapping[str, FileEntry], path_of: Callable[[FileEntry], Path]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENCE_S

        def do_GET(self) -> None:
            """Give the bytes of a shard of the text, and nothing else."""
            file = known.get(self.path.lstrip("/"))
            if file is None:
                self.send_error(404)
                return
            try:
                with path_of(file).open("rb") as content:
                    self._send(file, content.fileno())
            except (LonghaulError, FileNotFoundError) as error:
                # The client takes it from the store; why it is not here, this node's log tells.
                self.send_error(503, explain=str(getattr(error, "message", error))[:200])

        def log_message(self, *_: object) -> None:
            """Nobody reads a line a shard."""

        def _send(self, file: FileEntry, descriptor: int) -> None:
            begin = _begin_of(self.headers.get("Range"), file.size_bytes)
            self.send_response(206 if begin else 200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(file.size_bytes - begin))
            self.end_headers()
            while begin < file.size_bytes:
                piece = os.pread(descriptor, _CHUNK, begin)
                if not piece:
                    break
                self.wfile.write(piece)
                begin += len(piece)

    return Handler


def _begin_of(header: str | None, size: Bytes) -> Bytes:
    digits = (header or "").removeprefix("bytes=").removesuffix("-")
    begin = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else 0
    return min(begin, size)
