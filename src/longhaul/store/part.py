"""A part of a checkpoint fetched from a store: the model, and nothing of the optimizer's state.

Tensors lie in safetensors files one after the other, and the header of each says where. A file here
has its whole size, with holes where nothing was fetched.
"""

from pathlib import Path
from typing import Any

from longhaul.core import strict
from longhaul.core.output import Say
from longhaul.core.units import Bytes
from longhaul.store.catalogue import Checkpoint
from longhaul.store.manifest import (
    FACTS_NAME,
    FileEntry,
    Manifest,
    RefusedCheckpoint,
    read_json,
    refusing,
)
from longhaul.store.remote import RemoteTier
from longhaul.store.store_files import StoreFiles

_METADATA_NAME = "metadata.json"
_LENGTH_BYTES = 8
"""Little endian, before the header."""
_MOST_HEADER_BYTES: Bytes = 100_000_000
"""What the safetensors library itself reads."""


def bring_part(
    checkpoint: Checkpoint, tier: RemoteTier, into: Path, prefix: str, say: Say
) -> tuple[Manifest, Bytes]:
    """Fetch the tensors whose names begin with `prefix` of a checkpoint that `tier` lists, and what
    describes them; its manifest, and the bytes of tensors fetched.

    Raises:
        StoreError: the store refused, hung, or gives other bytes.
        RefusedCheckpoint: its files contradict each other.
        OSError: the local medium refused.
    """
    manifest, _ = tier.manifest_of(checkpoint)
    listed = {file.name: file for file in manifest.files}
    into.mkdir(parents=True, exist_ok=True)
    fetched: Bytes = 0
    with tier.files.throttle:
        for name in (_METADATA_NAME, FACTS_NAME):
            if name not in listed:
                raise RefusedCheckpoint(f"{tier.name}/{checkpoint.path}: it has no {name}")
            tier.files.fetch(f"{checkpoint.path}/{name}", into / name, listed[name], say)
        for name, keys in _keys_by_file(into / _METADATA_NAME, prefix).items():
            if name not in listed:
                raise RefusedCheckpoint(f"{into / _METADATA_NAME}: {name[:80]!r} is not listed")
            place, size = f"{checkpoint.path}/{name}", listed[name].size_bytes
            ranges = _ranges(tier.files, place, listed[name], keys)
            tier.files.fetch_ranges(place, into / name, size, ranges, say)
            fetched += sum(end - begin for begin, end in ranges[1:])
    return manifest, fetched


def _keys_by_file(path: Path, prefix: str) -> dict[str, set[str]]:
    body = read_json(path)
    found: dict[str, set[str]] = {}
    try:
        for name, tensor in body["tensors"].items():
            for chunk in tensor["chunks"] if name.startswith(prefix) else ():
                found.setdefault(str(chunk["file"]), set()).add(str(chunk["key"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise RefusedCheckpoint(f"{path}: describes no tensors ({error!r})") from None
    return found


def _ranges(
    files: StoreFiles, place: str, file: FileEntry, keys: set[str]
) -> list[tuple[Bytes, Bytes]]:
    """Where the header lies, and then the tensors of these keys; neighbours are one range."""
    what = f"{files.name}/{place}"
    if file.size_bytes < _LENGTH_BYTES:
        raise RefusedCheckpoint(f"{what}: too short for a file of tensors")
    begin = _LENGTH_BYTES + int.from_bytes(files.read_range(place, 0, _LENGTH_BYTES), "little")
    if begin > min(file.size_bytes, _MOST_HEADER_BYTES):
        raise RefusedCheckpoint(f"{what}: its header cannot be {begin} bytes long")
    with refusing(Path(what)):
        header = strict.parse_json(files.read_range(place, _LENGTH_BYTES, begin), what)
    found = sorted(_place_of(header, key, file.size_bytes - begin, what) for key in keys)
    ranges = [(0, begin)]
    for first, last in found:
        first, last = first + begin, last + begin
        if len(ranges) > 1 and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
        else:
            ranges.append((first, last))
    return ranges


def _place_of(header: Any, key: str, most: Bytes, what: str) -> tuple[Bytes, Bytes]:
    try:
        first, last = header[key]["data_offsets"]
        if not (type(first) is type(last) is int and 0 <= first <= last <= most):
            raise ValueError(f"from {first} to {last}")
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedCheckpoint(f"{what}: {key[:80]!r} does not lie in it ({error!r})") from None
    return first, last
