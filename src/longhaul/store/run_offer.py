"""The offer of a run to another cluster: what makes a copy in a store one to go on from.

```
REMOTE/NAME/moves/000007-1a2b3c4d5e6f7081.json    attempt at the source, and the move's identity
REMOTE/NAME/moves/1a2b3c4d5e6f7081.taken          who has taken it
```

The source writes it last: the checkpoint and the run log that it names have been read back, and its
own folder is closed. A destination begins with nothing else.
"""

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from longhaul.core.records import Moment
from longhaul.store.manifest import (
    RefusedCheckpoint,
    Whole,
    check_rendered,
    parse_sealed,
    render_sealed,
    shaped,
)
from longhaul.store.store_files import StoreFiles

FOLDER = "moves"
_NAME = re.compile(r"([0-9]{6,18})-([0-9a-f]{16})\.json", re.ASCII)
_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Identity = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
_Line = Annotated[str, Field(max_length=2000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One prepared text of the run, by the name of its folder and its identity."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}$")]
    identity: _Hash


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOffer:
    """A run that another cluster may go on with."""

    move: _Identity
    attempt: Whole
    """Of the source when it sent the run log; the destination counts on from it."""
    created: Moment
    """Unix time at which the run was made: it distinguishes two runs of one name."""
    source: _Line
    destination: _Line
    step: Whole
    manifest: _Hash
    """SHA-256 of the checkpoint's manifest."""
    edition: _Line
    """Path of the run log's index."""
    texts: tuple[Text, ...]
    """What it was trained on, the last one last."""
    who: _Line
    reason: _Line
    time: Moment

    @property
    def path(self) -> str:
        """Below the run's address."""
        return f"{FOLDER}/{self.attempt:06d}-{self.move}.json"


_OFFER = TypeAdapter(RunOffer)
_FIELDS = set(RunOffer.__dataclass_fields__)


def render_offer(offer: RunOffer) -> bytes:
    """The bytes of an offer."""
    return render_sealed(json.loads(json.dumps(asdict(offer))), indent=1)


def parse_offer(content: bytes, name: str) -> RunOffer:
    """The offer with these bytes; refused if it is damaged in any byte, or of a newer format."""
    body = parse_sealed(content, name, _FIELDS)
    offer = shaped(_OFFER, {key: body[key] for key in _FIELDS}, name)
    check_rendered(content, render_offer(offer), name)
    return offer


def offers(files: StoreFiles) -> list[RunOffer]:
    """The readable offers of the run below an address, newest first; StoreError as its files."""
    found = []
    for name in sorted(files.names(FOLDER), reverse=True):
        match = _NAME.fullmatch(name)
        content = files.read_small(f"{FOLDER}/{name}") if match else None
        if content is not None:
            with suppress(RefusedCheckpoint):
                offer = parse_offer(content, f"{files.name}/{FOLDER}/{name}")
                if offer.path == f"{FOLDER}/{name}":
                    found.append(offer)
    return sorted(found, key=lambda offer: offer.attempt, reverse=True)


def taken_by(files: StoreFiles, offer: RunOffer) -> str:
    """Who has taken an offer, in words; empty if nobody has. StoreError as its files."""
    content = files.read_small(f"{FOLDER}/{offer.move}.taken")
    return "" if content is None else content.decode("utf-8", "replace").strip()[:400]


def take(files: StoreFiles, offer: RunOffer, who: str) -> None:
    """Let everybody know that an offer was taken; StoreError as its files."""
    files.send_bytes(f"{who}\n".encode(), f"{FOLDER}/{offer.move}.taken")
