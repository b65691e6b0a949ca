"""Prepared text brought from one cluster to another through a store: `longhaul data push`, `pull`.

```
ADDRESS/NAME/00-first-00000.shard …    several at once, each read back and compared
ADDRESS/NAME/dataset.json              sent last, when everything else is there
```

The manifest's hashes decide on both sides. Cut off, either goes on with the files it lacks.
"""

import errno
import fcntl
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from longhaul.core.clocks import Clock
from longhaul.core.errors import DataError, NeedsPerson
from longhaul.core.files import write_bytes, write_json
from longhaul.core.output import Say
from longhaul.core.strict import parse_json
from longhaul.core.units import Bytes, Seconds, short_bytes, short_seconds
from longhaul.data.dataset import (
    DATASET_FORMAT,
    MANIFEST,
    identity_of,
    listed_files,
    open_dataset,
    read_manifest,
)
from longhaul.data.finishing import commit
from longhaul.data.shards import HEADER_BYTES, STREAM, facts_of
from longhaul.data.streaming import StreamSettings, stream_of
from longhaul.store.manifest import FileEntry, RefusedCheckpoint
from longhaul.store.store_files import StoreFiles

_COMING = ".pulling"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TELL_EVERY_S: Seconds = 5.0
_WHOLE = "remove that folder, and `longhaul data pull` it without --stream"

Fetch = Callable[[FileEntry, Path], None]
"""Brings one file of a text to a path, compared with its hash."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a push or a pull has done."""

    files: int
    """That were brought; the others were there."""
    size_bytes: Bytes
    took_s: Seconds

    def __str__(self) -> str:
        if not self.files:
            return "all of it was there"
        rate = short_bytes(self.size_bytes / max(self.took_s, 1e-9))
        return (
            f"{self.files} files, {short_bytes(self.size_bytes)} in {short_seconds(self.took_s)} "
            f"({rate}/s)"
        )


def push(folder: Path, files: StoreFiles, streams: int, clock: Clock, say: Say) -> Transfer:
    """Bring the prepared text in `folder` to a store, `streams` files at once.

    Raises:
        DataError: it is damaged here, or another text of this name lies there.
        StoreError: the store does not answer; the same command goes on later.
    """
    manifest = read_manifest(folder)
    if (folder / STREAM).exists():
        raise DataError(f"{folder}: comes from a store itself while it is read", _WHOLE)
    began, content = clock.monotonic(), (folder / MANIFEST).read_bytes()
    there = files.read_small(MANIFEST)
    if there is not None and identity_of(parsed(there, files.name)) != identity_of(manifest):
        raise DataError(
            f"{files.name}: another text of this name lies there",
            "remove it there, or rename the prepared folder here",
        )
    names = set(files.names())
    entries = _entries(manifest)
    # Where the manifest is, everything was there once: only what was removed since is sent again.
    left = [e for e in entries if there is None or e.name not in names]
    sent: list[Bytes] = []

    def send(entry: FileEntry) -> None:
        with files.throttle:
            if entry.name in names and files.holds(entry.name, entry):
                return
            try:
                files.send(folder / entry.name, entry.name, entry)
            except RefusedCheckpoint as refusal:
                raise DataError(
                    refusal.message, "its bytes are not those that were prepared: prepare it again"
                ) from refusal
            sent.append(entry.size_bytes)

    # Every byte is sent and read back.
    work = 2 * sum(entry.size_bytes for entry in left)
    with _telling(files, work, "sent and read back", clock, say):
        _each(left, send, streams)
    if there is None:
        files.send_bytes(content, MANIFEST)
    return Transfer(len(sent), sum(sent), clock.monotonic() - began)


def pull(
    files: StoreFiles,
    name: str,
    home: Path,
    streams: int,
    clock: Clock,
    say: Say,
    fetch: Fetch | None = None,
    streaming: StreamSettings | None = None,
) -> Transfer:
    """Bring a text from a store into `home/name`, which appears when it is whole. `fetch` takes a
    file from elsewhere than the store (`shard_cache.py`). With `streaming` settings the shards to
    train on do not come: those that are read will, then (`streaming.py`).

    Raises:
        DataError: no text lies there, or another one of this name is here.
        StoreError: the store does not answer, or gives other bytes.
        NeedsPerson: the disk here is full, or refuses.
    """
    began, target = clock.monotonic(), home / name
    if not _PLAIN.fullmatch(name):
        raise DataError(f"{name[:80]!r}: no name of a prepared text", "give the folder's own name")
    content = files.read_small(MANIFEST)
    if content is None:
        raise DataError(
            f"{files.name}: no prepared text lies there", "`longhaul data push` brings it there"
        )
    manifest = parsed(content, files.name)
    if (target / MANIFEST).exists():
        if identity_of(read_manifest(target)) != identity_of(manifest):
            raise DataError(f"{target}: another text of this name is here", "move it elsewhere")
        _settle_streaming(target, streaming)
        return Transfer(0, 0, clock.monotonic() - began)
    entries = _entries(manifest)
    elsewhere = _to_train_on(manifest) if streaming else set[str]()
    later = [entry for entry in entries if entry.name in elsewhere]
    entries = [entry for entry in entries if entry.name not in elsewhere]
    try:
        home.mkdir(parents=True, exist_ok=True)
        coming = home / f"{_COMING}-{name}"
        with _alone(home / f"{_COMING}-{name}.lock"):
            if (target / MANIFEST).exists():  # brought while this one waited
                _settle_streaming(target, streaming)
                return Transfer(0, 0, clock.monotonic() - began)
            coming.mkdir(exist_ok=True)
            _remove_others(coming, {entry.name for entry in entries})
            if fetch is None:
                _refuse_without_room(coming, entries)
            had = _here(coming)
            _bring(files, entries, coming, streams, fetch, clock, say)
            if streaming is not None:
                made = replace(streaming, shards=_facts(files, later, streams))
                write_json(coming / STREAM, made.as_json())
            write_bytes(coming / MANIFEST, content)
            open_dataset(coming)
            commit(coming, target)
            shutil.rmtree(coming, ignore_errors=True)
        (home / f"{_COMING}-{name}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise _refused(error, target) from error
    size = sum(entry.size_bytes for entry in entries)
    return Transfer(len(entries), max(0, size - had), clock.monotonic() - began)


def _to_train_on(manifest: dict[str, Any]) -> set[str]:
    return {shard["file"] for source in manifest["sources"] for shard in source["train"]}


def _settle_streaming(folder: Path, streaming: StreamSettings | None) -> None:
    """Let a text that is here already come as it is asked for now; one that is whole stays so."""
    here = stream_of(folder)
    if here is not None and streaming is None:
        raise DataError(f"{folder}: this text comes while it is read", _WHOLE)
    if here is not None and streaming is not None:
        write_json(folder / STREAM, replace(streaming, shards=here.shards).as_json())


def _facts(
    files: StoreFiles, entries: Sequence[FileEntry], streams: int
) -> dict[str, dict[str, Any]]:
    """What the headers of shards in a store say, each read by itself."""
    found: dict[str, dict[str, Any]] = {}

    def read(entry: FileEntry) -> None:
        with files.throttle:
            head = files.read_range(entry.name, 0, min(HEADER_BYTES, entry.size_bytes))
        found[entry.name] = asdict(facts_of(Path(entry.name), head, entry.size_bytes))

    # A header takes a moment that is hardly the network's: many at once.
    _each(entries, read, 8 * streams)
    return {entry.name: found[entry.name] for entry in entries}


def parsed(content: bytes, name: str) -> dict[str, Any]:
    """The manifest with these bytes, of which nobody knows who wrote them; DataError if it is none,
    of another format, or names files that are no plain ones.
    """
    try:
        manifest: dict[str, Any] = parse_json(content, name)
        if manifest["format"] != DATASET_FORMAT:
            raise DataError(
                f"{name}: data format {manifest['format']}; this longhaul reads {DATASET_FORMAT}",
                "prepare the data again",
            )
        identity_of(manifest)
        for entry in _entries(manifest):
            size = entry.size_bytes
            plain = _PLAIN.fullmatch(entry.name) and entry.name != MANIFEST
            if not (plain and _HASH.fullmatch(entry.sha256) and type(size) is int and size >= 0):
                raise ValueError(f"{entry.name[:80]!r} is no file of a text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: its manifest is damaged ({error})", "push it again") from None
    return manifest


def entries_of_text(files: StoreFiles) -> list[FileEntry]:
    """The files of the text in a store; DataError if there is none."""
    content = files.read_small(MANIFEST)
    if content is None:
        raise DataError(
            f"{files.name}: no prepared text lies there", "`longhaul data push` brings it there"
        )
    return _entries(parsed(content, files.name))


def progress_line(done: Bytes, total: Bytes, took_s: Seconds, what: str) -> str:
    """How far a transfer is: MB/s since it began, and the time that the rest takes at that rate."""
    rate = done / took_s if took_s > 0 else 0.0
    left = f"{short_seconds((total - done) / rate)} left" if rate and total > done else "ending"
    return (
        f"data: {short_bytes(min(done, total))} of {short_bytes(total)} {what}, "
        f"{rate / 1e6:.1f} MB/s, {left}"
    )


def _entries(manifest: dict[str, Any]) -> list[FileEntry]:
    return [
        FileEntry(str(name), facts["bytes"], str(facts["sha256"]))
        for name, facts in listed_files(manifest).items()
    ]


def _bring(
    files: StoreFiles,
    entries: Sequence[FileEntry],
    coming: Path,
    streams: int,
    fetch: Fetch | None,
    clock: Clock,
    say: Say,
) -> None:
    def bring(entry: FileEntry) -> None:
        if fetch is not None:
            fetch(entry, coming / entry.name)
            return
        with files.throttle:
            files.fetch(entry.name, coming / entry.name, entry, say)

    left = sum(entry.size_bytes for entry in entries) - _here(coming)
    with _telling(files, left, "fetched", clock, say):
        _each(entries, bring, streams)


def _each(entries: Sequence[FileEntry], work: Callable[[FileEntry], None], streams: int) -> None:
    """Do it for each, several at once; the first error ends the others and is raised."""
    with ThreadPoolExecutor(max_workers=max(1, streams)) as pool:
        begun = [pool.submit(work, entry) for entry in entries]
        done, waiting = wait(begun, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()


@contextmanager
def _telling(files: StoreFiles, total: Bytes, what: str, clock: Clock, say: Say) -> Iterator[None]:
    began, before, stop = clock.monotonic(), files.throttle.passed_bytes, threading.Event()

    def tell() -> None:
        while not stop.wait(_TELL_EVERY_S):
            done = files.throttle.passed_bytes - before
            say(progress_line(done, total, clock.monotonic() - began, what))

    thread = threading.Thread(target=tell, name="tell of a transfer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two that pull one text at once would write the same files; the second waits."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_others(coming: Path, wanted: set[str]) -> None:
    """Remove what came of another text of this name, which has been replaced in the store since."""
    for path in coming.iterdir():
        if path.name not in wanted:
            path.unlink()


def _here(coming: Path) -> Bytes:
    return sum(path.stat().st_size for path in coming.iterdir() if path.is_file())


def _refuse_without_room(coming: Path, entries: Sequence[FileEntry]) -> None:
    needed = sum(entry.size_bytes for entry in entries) - _here(coming)
    free = shutil.disk_usage(coming).free
    if free < needed:
        words = f"{short_bytes(needed)} are to come, and {short_bytes(free)} are free"
        raise OSError(errno.ENOSPC, words, str(coming))


def _refused(error: OSError, target: Path) -> NeedsPerson:
    return NeedsPerson(
        f"{target}: could not be brought here ({error.strerror or error})",
        "mend that, and give the same command again: it goes on where it was",
    )
