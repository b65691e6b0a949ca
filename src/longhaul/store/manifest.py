"""The manifest: which files a checkpoint consists of, with a hash for each and for itself.

It is written last, after everything it names is on the medium, so its presence is the marker
that commits a checkpoint. A checkpoint may come from anywhere: types of its JSON are checked.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from longhaul.core import strict
from longhaul.core.errors import LonghaulError
from longhaul.core.faults import Point, point
from longhaul.core.files import moved, naming, sha256_of, write_bytes
from longhaul.core.units import Bytes, Seconds

T = TypeVar("T")

FACTS_NAME = "state.json"
"""Of the file that holds everything but tensors."""
MOST_JSON_BYTES: Bytes = 1 << 28
"""A checkpoint of 100,000 chunks describes itself in about 20 MB."""


class RefusedCheckpoint(LonghaulError):
    """A checkpoint that is damaged or not to be trusted; an older one may do."""


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Raise `RefusedCheckpoint` where a file that describes a checkpoint cannot be read."""
    try:
        yield
    except strict.DamagedFile as damage:
        raise RefusedCheckpoint(damage.message) from None
    except OSError as error:
        raise RefusedCheckpoint(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> Any:
    """The JSON value in `path`, strictly (`core.strict`), or RefusedCheckpoint."""
    with refusing(path):
        return strict.read_json(path, MOST_JSON_BYTES)


def versioned(value: Any, version: int, keys: set[str], what: str) -> dict[str, Any]:
    """`value` as an object of this format version with exactly these keys beside it, or refused."""
    found = value.get("format_version") if isinstance(value, dict) else None
    if found != version:
        raise RefusedCheckpoint(f"{what}: format version {found!r}; this longhaul reads {version}")
    return table(value, {"format_version", *keys}, what)


def table(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    """`value` as an object with exactly these keys; else `what` is refused."""
    if not isinstance(value, dict) or value.keys() != keys:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise RefusedCheckpoint(f"{what}: expected the keys {sorted(keys)}, found {found}")
    return value


Whole = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
"""A whole number that is not negative and fits 63 bits."""


def shaped(kind: TypeAdapter[T], value: Any, what: str) -> T:
    """`value` as this type; else `what` is refused, with the place in it."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RefusedCheckpoint(f"{what}: {where}: {first['msg']}"[:400]) from None


MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1

_SYNC_BYTES: Bytes = 1 << 30
"""Brought onto the medium at once. Memory takes far more of a file than a slow disk writes in ten
minutes, and nobody can tell its last fsync from one that hangs."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    size_bytes: Whole
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one checkpoint, itself excepted."""

    step: Whole
    time: Seconds
    """Unix time at which the files were complete."""
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> Bytes:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)


_MANIFEST = TypeAdapter(Manifest)


def write_listed_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileEntry:
    """Write `pieces` to a new file and fsync it; its entry for the manifest. The hash is that of
    the bytes as they were meant, so that whatever the medium makes of them is found out when they
    are read back. An OSError of the medium leaves behind what it had taken so far.
    """
    point(Point.WRITE_FILE, path)
    digest, size_bytes, synced = hashlib.sha256(), 0, 0
    with naming(path), path.open("xb", buffering=0) as file:
        for piece in pieces:
            unwritten = memoryview(piece)
            digest.update(unwritten)
            size_bytes += len(unwritten)
            while len(unwritten):
                unwritten = unwritten[file.write(unwritten) :]
            if size_bytes - synced >= _SYNC_BYTES:
                os.fsync(file.fileno())
                synced = size_bytes
            moved(len(piece))
        os.fsync(file.fileno())
    return FileEntry(path.name, size_bytes, digest.hexdigest())


def render_json(value: Any) -> bytes:
    """As a file of a checkpoint has it; ValueError if a number in `value` is not finite."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Write `folder/manifest.json` atomically; the SHA-256 of its bytes."""
    content = _render(manifest)
    write_bytes(folder / MANIFEST_NAME, content)
    return hashlib.sha256(content).hexdigest()


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest in `folder`, and the SHA-256 of its bytes; refused as by `parse_manifest`."""
    path = folder / MANIFEST_NAME
    with refusing(path):
        content = strict.read_bytes(path, MOST_JSON_BYTES)
    return parse_manifest(content, str(path)), hashlib.sha256(content).hexdigest()


def parse_manifest(content: bytes, name: str) -> Manifest:
    """The manifest with these bytes; refused if it is damaged in any byte, or of a newer format."""
    manifest = shaped(_MANIFEST, parse_sealed(content, name, {"step", "time", "files"}), name)
    check_names(manifest.files, f"{name}: files", _is_plain)
    check_rendered(content, _render(manifest), name)
    return manifest


def verify(
    folder: Path, past_page_cache: bool = False, share: tuple[int, int] = (0, 1)
) -> Manifest:
    """Read every byte of the checkpoint in `folder` and compare it with the manifest, from the
    medium itself if asked for; RefusedCheckpoint names the first file that is absent, unlisted, or
    differs. (rank, size) is the `share` of one of several that divide the files.
    """
    rank, size = share
    manifest, _ = read_manifest(folder)
    listed = {file.name for file in manifest.files} | {MANIFEST_NAME}
    for path in sorted(folder.iterdir()):
        # An NFS client keeps a file that was removed while open under a name like this.
        if path.name not in listed and not path.name.startswith(".nfs"):
            raise RefusedCheckpoint(f"{path}: the manifest does not list this file")
    for file in manifest.files[rank::size]:
        _verify_file(folder / file.name, file, past_page_cache)
    return manifest


def _verify_file(path: Path, expected: FileEntry, past_page_cache: bool) -> None:
    with refusing(path):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise RefusedCheckpoint(f"{path}: not a regular file")
        if found.st_size != expected.size_bytes:
            raise RefusedCheckpoint(
                f"{path}: {found.st_size} bytes long, the manifest says {expected.size_bytes}"
            )
        sha256 = sha256_of(path, past_page_cache)
    if sha256 != expected.sha256:
        raise RefusedCheckpoint(
            f"{path}: SHA-256 {sha256[:12]}…, the manifest says {expected.sha256[:12]}…"
        )


def _render(manifest: Manifest) -> bytes:
    return render_sealed(asdict(manifest), indent=2)


def _is_plain(name: str) -> bool:
    return _PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST_NAME


def render_sealed(body: dict[str, Any], indent: int) -> bytes:
    """The bytes of a list of files: JSON with the format's version and its own hash in it."""
    sealed: dict[str, Any] = {"format_version": FORMAT_VERSION, **body}
    sealed["sha256"] = hashlib.sha256(json.dumps(sealed).encode()).hexdigest()
    return (json.dumps(sealed, indent=indent) + "\n").encode()


def parse_sealed(content: bytes, name: str, keys: set[str]) -> dict[str, Any]:
    """The JSON of a list of files, with these keys; whoever reads it calls `check_rendered`."""
    with refusing(Path(name)):
        value = strict.parse_json(content, name)
    return versioned(value, FORMAT_VERSION, {"sha256", *keys}, name)


def check_rendered(content: bytes, rendered: bytes, name: str) -> None:
    """Refuse a list of files unless what was made of it is `rendered` as the same bytes: there is
    one rendering only, and whatever else parses to the same value was altered.
    """
    if content != rendered:
        raise RefusedCheckpoint(f"{name}: does not match its own hash; it was altered or damaged")


def check_names(files: Sequence[FileEntry], what: str, is_name: Callable[[str], bool]) -> None:
    """Refuse a list of files that nobody vouches for if a name is wrong, or there twice."""
    for file in files:
        if not is_name(file.name):
            raise RefusedCheckpoint(f"{what}: {file.name[:120]!r} is not a plain file name")
    if len({file.name for file in files}) != len(files):
        raise RefusedCheckpoint(f"{what}: names a file twice")
