"""Checkpoints in a store elsewhere: an S3 bucket, a folder on another file system.

```
REMOTE/step-120-1a2b3c4d5e6f/       named by its manifest's hash: another one made at the same
  __0_0.safetensors …               step lies beside it, and nothing is ever overwritten
  manifest.json                     sent last, when everything else has been read back
REMOTE/book/                        what is no checkpoint (`remote_log.py`)
```
"""

import hashlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.errors import NotOwner
from longhaul.core.events import EventKind
from longhaul.core.files import write_bytes
from longhaul.core.units import Bytes, Seconds
from longhaul.store.catalogue import Checkpoint
from longhaul.store.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    RefusedCheckpoint,
    parse_manifest,
    read_manifest,
)
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChange:
    """Something that happened between this run and a tier since the last poll."""

    kind: EventKind
    """`store-away`: told once, when the first attempt fails; it is tried again and again.
    `store-taken`: the place is another run's, or a later attempt's; nothing more is sent there.
    `upload-dropped`: a checkpoint that will not be sent, and why."""
    tier: str
    step: int
    manifest_sha256: str = ""
    size_bytes: Bytes = 0
    """Sent now; files that were there already are not counted."""
    seconds: Seconds = 0.0
    message: str = ""


class TierChanges:
    """The changes of one tier.

    Args:
        tier: its name.
    """

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._changes: deque[TierChange] = deque()

    def poll(self) -> Iterator[TierChange]:
        """What happened since the last call, in order; never waits."""
        with suppress(IndexError):
            while True:
                yield self._changes.popleft()

    def emit(
        self,
        kind: EventKind,
        checkpoint: Checkpoint | None,
        message: str = "",
        *,
        size_bytes: Bytes = 0,
        seconds: Seconds = 0.0,
    ) -> None:
        """Keep one more; `TierChange` says what its parts are."""
        self._changes.append(
            TierChange(
                kind=kind,
                tier=self._tier,
                step=0 if checkpoint is None else checkpoint.step,
                manifest_sha256="" if checkpoint is None else checkpoint.manifest_sha256,
                size_bytes=size_bytes,
                seconds=seconds,
                message=message,
            )
        )


_PLACE = re.compile(r"step-(0|[1-9][0-9]*)-([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class Sent:
    """What sending a checkpoint took."""

    bytes_sent: Bytes
    files_sent: int
    files_there: int
    """Files that an earlier attempt had brought there, whole."""


class RemoteTier:
    """The checkpoints of one run in one store.

    Args:
        files: those below the run's own address, with its name in it.
    """

    def __init__(self, files: StoreFiles) -> None:
        self.name = files.name
        self.files = files
        self._compared: set[str] = set()
        """Files of unfinished uploads that have been read back: each is read back once."""

    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints there, lowest step first; paths are relative to the tier.

        Raises:
            StoreError: the store does not say.
        """
        found = [entry for place in self._places() if (entry := self._entry(place))]
        return sorted(found, key=lambda entry: (entry.step, entry.time))

    def send(self, folder: Path, still_owner: Callable[[], bool]) -> Sent:
        """Bring the checkpoint in `folder` there; what is there already is not sent again.

        Args:
            folder: committed.
            still_owner: the fence, asked right before the manifest is sent.

        Raises:
            StoreError: the store refused, hung, or gives back other bytes; call it again later.
            NotOwner: the lease went to another attempt.
            RefusedCheckpoint: the checkpoint in `folder` is damaged, or gone.
            TransferStopped: the run ends.
        """
        manifest, sha256 = read_manifest(folder)
        place = _place(manifest.step, sha256)
        if self._entry(place) is not None:
            return Sent(0, 0, len(manifest.files) + 1)
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
        total = sum(file.size_bytes for file in missing) + size_bytes
        return Sent(total, len(missing) + 1, len(manifest.files) - len(missing))

    def fetch(self, checkpoint: Checkpoint, into: Path, say: Callable[[str], None]) -> Manifest:
        """Bring a checkpoint here, going on where an earlier attempt was cut off.

        Args:
            checkpoint: as listed by `checkpoints`.
            into: a folder, made if need be; its manifest comes last.
            say: is told what is tried again.

        Raises:
            StoreError: the store refused, hung, or gives other bytes than its manifest says.
            OSError: the local medium refused.
        """
        manifest, content = self._manifest(checkpoint)
        into.mkdir(parents=True, exist_ok=True)
        with self.files.throttle:
            for file in manifest.files:
                self.files.fetch(f"{checkpoint.path}/{file.name}", into / file.name, file, say)
        write_bytes(into / MANIFEST_NAME, content)  # and every name beside it
        return manifest

    def read(self, checkpoint: Checkpoint, name: str) -> bytes:
        """The bytes of a small file of a checkpoint, compared with its manifest.

        Args:
            checkpoint: as listed by `checkpoints`.
            name: of the file.

        Raises:
            StoreError: the store refused or hung.
            RefusedCheckpoint: it gives other bytes than the manifest says.
        """
        manifest, _ = self._manifest(checkpoint)
        listed = {file.name: file.sha256 for file in manifest.files}
        content = self.files.read_small(f"{checkpoint.path}/{name}") or b""
        if hashlib.sha256(content).hexdigest() != listed.get(name):
            raise RefusedCheckpoint(
                f"{self.name}/{checkpoint.path}/{name}: not as its manifest says"
            )
        return content

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint there, its manifest first: what is left is none any more.

        Raises:
            StoreError: the store refused or hung.
        """
        self._remove(str(checkpoint.path))

    def remove_unfinished(self, latest_step: int, wanted: set[str]) -> list[str]:
        """Delete what cut-off uploads left; their names.

        Args:
            latest_step: only uploads of this step or before are given up.
            wanted: hashes of the manifests that are still to be sent.

        Raises:
            StoreError: the store refused or hung.
        """
        gone = []
        beginnings = {sha256[:12] for sha256 in wanted}
        for place in self._places():
            match = _PLACE.fullmatch(place)
            if match is None or int(match[1]) > latest_step or match[2] in beginnings:
                continue
            if self._entry(place) is None:
                self._remove(place)
                gone.append(place)
        return gone

    def _manifest(self, checkpoint: Checkpoint) -> tuple[Manifest, bytes]:
        content = self.files.read_small(f"{checkpoint.path}/{MANIFEST_NAME}") or b""
        if hashlib.sha256(content).hexdigest() != checkpoint.manifest_sha256:
            raise StoreError(f"{self.name}/{checkpoint.path}: its manifest has changed")
        return parse_manifest(content, f"{self.name}/{checkpoint.path}"), content

    def _places(self) -> list[str]:
        return [name for name in self.files.names() if _PLACE.fullmatch(name)]

    def _entry(self, place: str) -> Checkpoint | None:
        """The checkpoint there; None if it has no manifest, or not a whole one."""
        content = self.files.read_small(f"{place}/{MANIFEST_NAME}")
        if content is None:
            return None
        try:
            manifest = parse_manifest(content, f"{self.name}/{place}")
        except RefusedCheckpoint:
            return None
        sha256 = hashlib.sha256(content).hexdigest()
        if place != _place(manifest.step, sha256):
            return None
        return Checkpoint(
            step=manifest.step,
            path=Path(place),
            manifest_sha256=sha256,
            time=manifest.time,
            size_bytes=manifest.size_bytes,
        )

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


DrawOf = Callable[[RemoteTier, Checkpoint], int | None]


class Inventory:
    """The checkpoints of one tier.

    Args:
        tier: that is asked.
        draw_of: where in the data a checkpoint of the tier goes on, asked of the tier.
    """

    def __init__(self, tier: RemoteTier, draw_of: DrawOf) -> None:
        self._tier = tier
        self._draw_of = draw_of
        self._draws: dict[str, int | None] = {}
        self._there: tuple[Checkpoint, ...] | None = None
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        """Whether the tier has said what it holds."""
        return self._there is not None

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """What is known to be there; nothing before it was asked."""
        return self._there or ()

    @property
    def manifests(self) -> frozenset[str]:
        """Hashes of the manifests that are known to be there."""
        return frozenset(checkpoint.manifest_sha256 for checkpoint in self.checkpoints)

    @property
    def states(self) -> list[tuple[Checkpoint, int]]:
        """Checkpoints that are known to be there, and where in the data they go on."""
        draws = [(there, self._draws.get(there.manifest_sha256)) for there in self.checkpoints]
        return [(checkpoint, draw) for checkpoint, draw in draws if draw is not None]

    def learn(self) -> None:
        """Ask the tier; may take long.

        Raises:
            StoreError: it does not say.
        """
        there = tuple(self._tier.checkpoints())
        with self._lock:
            self._there = there

    def learn_draws(self) -> None:
        """Where checkpoints there go on in the data; what the store does not say is asked later."""
        with suppress(StoreError):
            for checkpoint in self.checkpoints:
                listed = len(checkpoint.path.parts) == 1  # what was just sent has its path here
                if listed and checkpoint.manifest_sha256 not in self._draws:
                    draw = self._draw_of(self._tier, checkpoint)
                    self._draws[checkpoint.manifest_sha256] = draw

    def add(self, checkpoint: Checkpoint) -> None:
        """It was sent there."""
        with self._lock:
            self._there = (*self.checkpoints, checkpoint)

    def discard(self, checkpoint: Checkpoint) -> None:
        """It was removed there."""
        with self._lock:
            self._there = tuple(item for item in self.checkpoints if item != checkpoint)
