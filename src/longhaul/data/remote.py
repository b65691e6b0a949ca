"""Remote files: fetched once through fsspec, kept with their hash, reused without a network.

Below `downloads` every address has a folder, with the files under their own names beside
`NAME.origin.json`, and `origin.json`, written last, that lists them.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal
from urllib.parse import unquote, urlsplit

from longhaul.core.addresses import scrubbed, unsealed, without_secrets
from longhaul.core.errors import DataError, LonghaulError, RecipeError
from longhaul.core.files import write_atomically, write_json
from longhaul.core.output import Say
from longhaul.core.units import Bytes, short_bytes
from longhaul.data.readers import (
    KNOWN_FORMATS,
    TOKEN_SUFFIXES,
    format_of,
    suffix_advice,
    taken_from_folder,
)
from longhaul.store.store_files import file_system, protocols

Wanted = Literal["text", "tokens", "any"]

_CHUNK_BYTES = 1 << 20
_CONNECT_S = 30
_SILENCE_S = 120
_VERSION_KEYS = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified")
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that is here now."""

    path: Path
    name: str
    """Its path relative to the address, or its own name."""
    size: Bytes
    sha256: str
    """Of its bytes, taken while they came in."""
    version: str = ""
    """The server's ETag or modification time, where it gave one."""


def fetch(
    url: str, downloads: Path, say: Say, sha256: str = "", wanted: Wanted = "text"
) -> list[RemoteFile]:
    """The files behind an address: one, or for `hf://`, `s3://` and such also a folder or a glob.

    A copy in `downloads` is used whatever the server has: delete its folder to fetch it anew. What
    is not `wanted` is refused, and left out of folders; `sha256` is that of a single file.
    DataError if they are unreachable, absent, truncated, of another hash, or of no known format;
    RecipeError if a hash is given for a folder.
    """
    url = unsealed(url)
    folder, shown = downloads / _folder_of(url), without_secrets(url)
    cached = _cached(folder)
    if cached is not None and (not sha256 or [item.sha256 for item in cached] == [sha256]):
        size = sum(item.size for item in cached)
        say(f"data: reusing the copy of {shown} in {folder} ({short_bytes(size)})")
        return cached
    with _explained(shown):
        system, names = _list(url, shown, wanted)
    if sha256 and len(names) != 1:
        raise RecipeError(
            f"data.sources.sha256: {shown} is {len(names)} files, and one hash fits one file",
            "leave sha256 empty, or name a single file",
        )
    folder.mkdir(parents=True, exist_ok=True)
    fetched = []
    for name, remote_path in names.items():
        item = _file_cached(folder, name)
        if item is None or sha256 not in ("", item.sha256):
            where = shown if len(names) == 1 else f"{shown.rstrip('/')}/{name}"
            item = _download(system, remote_path, where, folder / name, name, sha256)
            say(f"data: fetched {where} ({short_bytes(item.size)})")
        fetched.append(item)
    write_json(folder / "origin.json", {"url": shown, "fetched": _now(), "files": list(names)})
    return fetched


def is_here(url: str, downloads: Path) -> bool:
    """Whether `fetch` would take every file from the cache."""
    return _cached(downloads / _folder_of(unsealed(url))) is not None


def listed(url: str, wanted: Wanted = "text") -> list[str]:
    """Names of the files behind an address, of which the first answers; DataError as `fetch`."""
    url = unsealed(url)
    shown = without_secrets(url)
    with _explained(shown):
        system, names = _list(url, shown, wanted)
        system.info(next(iter(names.values())))
    return list(names)


def _folder_of(url: str) -> str:
    # A query may say which file is meant as well as who may have it: addresses that differ in it
    # are two. Its values are hashed so slowly that nobody can try them; a password is left out.
    shown = without_secrets(url)
    query = unquote(url).partition("?")[2] if "?" not in shown else ""
    if not query:
        return hashlib.sha256(shown.encode()).hexdigest()[:16]
    slow = hashlib.scrypt(query.encode(), salt=shown.encode(), n=1 << 14, r=8, p=1, dklen=8)
    return slow.hex()


def _list(url: str, shown: str, wanted: Wanted) -> tuple[Any, dict[str, str]]:
    """The file system, and relative name → path in it for every file of the address."""
    is_web = url.startswith(("http://", "https://"))
    way = "use https://, hf://, s3://, gs:// or az://"
    system, root = file_system(url, DataError, shown, way, **_web_options() if is_web else {})
    if is_web:
        name = unquote(PurePosixPath(urlsplit(url).path).name)
        _refuse_unreadable(name, shown, wanted)
        return system, {name: root}
    if _GLOB & set(root):
        found = system.glob(root)
        base = root[: min(root.index(c) for c in _GLOB & set(root))].rpartition("/")[0]
    elif system.isdir(root):
        found, base = system.find(root), root
    else:
        found, base = [root], root.rpartition("/")[0]
        if not _readable(root, wanted) and not system.exists(root):
            raise FileNotFoundError(root)
        _refuse_unreadable(root, shown, wanted)
    names = {path.removeprefix(base).lstrip("/"): path for path in sorted(found)}
    if len(found) > 1 or found != [root]:
        taken = taken_from_folder if wanted == "text" else partial(_readable, wanted=wanted)
        names = {name: path for name, path in names.items() if taken(name)}
    if not names:
        raise DataError(f"{shown}: no file there that can be read", KNOWN_FORMATS)
    for name in names:
        if {"", ".", ".."} & set(name.split("/")):
            raise DataError(f"{shown}: a file is called {name!r}", "give it a plain name")
    return system, names


def _readable(name: str, wanted: Wanted) -> bool:
    if wanted == "text":
        return format_of(name) is not None
    return wanted == "any" or name.lower().endswith(TOKEN_SUFFIXES)


def _refuse_unreadable(name: str, shown: str, wanted: Wanted) -> None:
    if not _readable(name, wanted):
        raise DataError(f"{shown}: no reader for this kind of file", suffix_advice(name))


def _web_options() -> dict[str, Any]:
    import aiohttp

    # aiohttp gives up after five minutes in all, however well the download is going.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _download(
    system: Any, remote_path: str, shown: str, path: Path, name: str, sha256: str
) -> RemoteFile:
    with _explained(shown):
        facts = system.info(remote_path)
        # Block size 0 streams over http and hf; object stores read ahead by themselves.
        extra = {"block_size": 0} if {"http", "hf"} & protocols(system) else {}
        stream = system.open(remote_path, "rb", **extra)
    digest = hashlib.sha256()
    size = 0

    def write(file: BinaryIO) -> None:
        nonlocal size
        while True:
            with _explained(shown):
                chunk = stream.read(_CHUNK_BYTES)
            if not chunk:
                break
            digest.update(chunk)
            size += file.write(chunk)
        expected = facts.get("size")
        if expected is not None and size != expected:
            raise _truncated(shown, f"{size:,} of {expected:,} bytes came")
        if sha256 and digest.hexdigest() != sha256:
            raise DataError(
                f"{shown}: its sha256 is {digest.hexdigest()}, "
                f"but the recipe expects {sha256} (data.sources.sha256)",
                "the file is another one than was meant: find out why before changing the recipe",
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(stream):
        write_atomically(path, write)
    version = next((str(facts[key]) for key in _VERSION_KEYS if facts.get(key)), "")
    item = RemoteFile(path, name, size, digest.hexdigest(), version)
    write_json(_origin_of(path), asdict(item) | {"path": name, "fetched": _now()})
    return item


def _cached(folder: Path) -> list[RemoteFile] | None:
    """Every file of an address; None unless all are whole."""
    try:
        names = json.loads((folder / "origin.json").read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    items = [_file_cached(folder, name) for name in names]
    return [item for item in items if item] if items and all(items) else None


def _file_cached(folder: Path, name: str) -> RemoteFile | None:
    path = folder / name
    try:
        facts = json.loads(_origin_of(path).read_bytes())
        if path.stat().st_size != facts["size"]:
            return None
        return RemoteFile(path, name, facts["size"], facts["sha256"], facts["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _origin_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.origin.json")


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())


def _truncated(shown: str, detail: str) -> DataError:
    return DataError(
        f"{shown}: the connection ended in the middle of the file ({detail})",
        "start again; files that are complete are kept",
    )


@contextmanager
def _explained(shown: str) -> Iterator[None]:
    """Turn what a remote file system raises into an error that names the address."""
    # Every fsspec back-end brings its own family of exceptions (aiohttp, botocore, httpx), hence
    # the wide net; errors of the local disk are raised outside of this.
    try:
        yield
    except LonghaulError:
        raise
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, FileNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__  # fsspec calls an unreachable host a missing file
        first_line = scrubbed(str(cause).partition("\n")[0])
        if "payload" in type(cause).__name__.lower() or "IncompleteRead" in type(cause).__name__:
            raise _truncated(shown, first_line) from error
        if isinstance(cause, FileNotFoundError):
            raise DataError(f"{shown}: not found (404)", "check the address") from error
        if isinstance(cause, PermissionError):
            raise DataError(
                f"{shown}: access denied",
                "set the credentials of this service, such as AWS_ACCESS_KEY_ID or HF_TOKEN",
            ) from error
        raise DataError(
            f"{shown}: cannot be fetched ({type(cause).__name__}: {first_line})",
            "check the address and the network; what was fetched before is reused without one",
        ) from error
