"""Checkpoints in a store elsewhere: an S3 bucket, a folder on another file system.

```
REMOTE/step-120-1a2b3c4d5e6f/       named by its manifest's hash: another one made at the same
  __0_0.safetensors …               step lies beside it, and nothing is ever overwritten
  manifest.json                     sent last, when everything else has been read back
REMOTE/book/                        what is no checkpoint (`remote_log.py`)
```
"""

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longhaul.core.errors import NotOwner
from longhaul.core.files import write_bytes
from longhaul.core.output import Say
from longhaul.core.units import Bytes
from longhaul.store.catalogue import Checkpoint
from longhaul.store.manifest import (
    FACTS_NAME,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    RefusedCheckpoint,
    parse_manifest,
    read_manifest,
)
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError

_PLACE = re.compile(r"step-(0|[1-9][0-9]*)-([0-9a-f]{12})")


class RemoteTier:
    """The checkpoints of one run in one store, whose `files` are those below the run's own address,
    with its name in it. Every method raises `StoreError` if the store refuses, hangs or gives other
    bytes; call it again later.
    """

    def __init__(self, files: StoreFiles) -> None:
        self.name = files.name
        self.files = files
        self._compared: set[str] = set()
        """Files of unfinished uploads that have been read back: each is read back once."""

    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints there, lowest step first; paths are relative to the tier."""
        found = [entry for place in self._places() if (entry := self._entry(place))]
        return sorted(found, key=lambda entry: (entry.step, entry.time))

    def send(self, folder: Path, still_owner: Callable[[], bool]) -> Bytes:
        """Bring the committed checkpoint in `folder` there; the bytes sent: what is there stays.

        Raises:
            NotOwner: the fence, right before the manifest is sent: another attempt has the lease.
            RefusedCheckpoint: the checkpoint in `folder` is damaged, or gone.
            TransferStopped: the run ends.
        """
        manifest, sha256 = read_manifest(folder)
        place = _place(manifest.step, sha256)
        if self._entry(place) is not None:
            return 0
        with self.files.throttle:
            missing = [file for file in manifest.files if not self._is_there(place, file)]
            for file in missing:
                self.files.send(folder / file.name, f"{place}/{file.name}", file)
                self._compared.add(f"{place}/{file.name}")
            if not still_owner():
                raise NotOwner(f"{place} was not committed in {self.name}: another attempt owns it")
            size_bytes = (folder / MANIFEST_NAME).stat().st_size
            last = FileEntry(MANIFEST_NAME, size_bytes, sha256)
            self.files.send(folder / MANIFEST_NAME, f"{place}/{MANIFEST_NAME}", last)
        self._compared = {path for path in self._compared if not path.startswith(f"{place}/")}
        return sum(file.size_bytes for file in missing) + size_bytes

    def fetch(self, checkpoint: Checkpoint, into: Path, say: Say) -> Manifest:
        """Bring a listed checkpoint here, its manifest last; OSError if the local disk refuses."""
        manifest, content = self.manifest_of(checkpoint)
        into.mkdir(parents=True, exist_ok=True)
        with self.files.throttle:
            for file in manifest.files:
                self.files.fetch(f"{checkpoint.path}/{file.name}", into / file.name, file, say)
        write_bytes(into / MANIFEST_NAME, content)  # and every name beside it
        return manifest

    def draw_of(self, checkpoint: Checkpoint) -> int | None:
        """Where a listed checkpoint goes on in the data; None if facts are absent or damaged."""
        with suppress(RefusedCheckpoint, ValueError, KeyError, TypeError):
            manifest, _ = self.manifest_of(checkpoint)
            listed = {file.name: file.sha256 for file in manifest.files}
            content = self.files.read_small(f"{checkpoint.path}/{FACTS_NAME}") or b""
            if hashlib.sha256(content).hexdigest() == listed.get(FACTS_NAME):
                return int(json.loads(content)["facts"]["progress"]["position"]["draw"])
        return None

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint there, its manifest first: what is left is none any more."""
        self._remove(str(checkpoint.path))

    def remove_unfinished(self, latest_step: int, wanted: set[str]) -> None:
        """Delete what cut-off uploads of this step or before left, except of the manifests with
        these hashes, which are still to be sent.
        """
        beginnings = {sha256[:12] for sha256 in wanted}
        for place in self._places():
            _, step, beginning = place.split("-")
            given_up = int(step) <= latest_step and beginning not in beginnings
            if given_up and self._entry(place) is None:
                self._remove(place)

    def manifest_of(self, checkpoint: Checkpoint) -> tuple[Manifest, bytes]:
        """The manifest of a listed checkpoint, and its bytes."""
        content = self.files.read_small(f"{checkpoint.path}/{MANIFEST_NAME}") or b""
        if hashlib.sha256(content).hexdigest() != checkpoint.manifest_sha256:
            raise StoreError(f"{self.name}/{checkpoint.path}: its manifest has changed")
        return parse_manifest(content, f"{self.name}/{checkpoint.path}"), content

    def _places(self) -> list[str]:
        return [name for name in self.files.names() if _PLACE.fullmatch(name)]

    def _entry(self, place: str) -> Checkpoint | None:
        content = self.files.read_small(f"{place}/{MANIFEST_NAME}")
        if content is None:
            return None
        try:
            manifest = parse_manifest(content, f"{self.name}/{place}")
        except RefusedCheckpoint:
            return None
        sha256 = hashlib.sha256(content).hexdigest()
        is_here = place == _place(manifest.step, sha256)
        return Checkpoint.of(manifest, sha256, Path(place)) if is_here else None

    def _is_there(self, place: str, file: FileEntry) -> bool:
        path = f"{place}/{file.name}"
        if path not in self._compared and self.files.holds(path, file):
            self._compared.add(path)
        return path in self._compared

    def _remove(self, place: str) -> None:
        self.files.remove(f"{place}/{MANIFEST_NAME}")
        self.files.remove(place)


def _place(step: int, manifest_sha256: str) -> str:
    return f"step-{step}-{manifest_sha256[:12]}"
