"""Prepared text whose shards come from a store while they are read, and a little before.

```
prepared/NAME/dataset.json      as of every prepared folder, with held-out shards and tokenizer
prepared/NAME/stream.json       where the other shards are, the cache they come to, what is in them
```

`longhaul data pull --stream` makes such a folder. Which shards come next is for the order of draws
to say (`order.shuffle_tokens`); what a step reads is the same as if all of them lay there.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longhaul.core.clocks import Clock, RealClock
from longhaul.core.errors import DataError, LonghaulError, NeedsPerson
from longhaul.core.output import Say
from longhaul.core.strict import read_object
from longhaul.core.units import Bytes, Seconds, short_bytes, short_seconds
from longhaul.data.shard_cache import ShardCache
from longhaul.data.shard_server import PassedShards
from longhaul.data.shards import STREAM, AnyShard, Offsets, Shard, ShardFacts
from longhaul.data.tokenizing import TokenArray
from longhaul.store.manifest import FileEntry
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Pace, StoreError, Throttle

_MOST_BYTES: Bytes = 512 << 20
_PATIENCE_S: Seconds = 600.0
"""A store that does not give a shard for so long ends the attempt."""
_AGAIN_S: Seconds = 10.0
_MOST_OTHERS = 4
"""Shards that stay open though no step will read them soon: of who looks something up."""
_DAMAGED = "remove the folder, and give `longhaul data pull --stream` again"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What `stream.json` says."""

    address: str
    """Of the text in its store; secrets sealed."""
    cache: str
    cache_bytes: Bytes
    shards: Mapping[str, Mapping[str, Any]]
    """File name → facts of a shard that is not in the folder: `ShardFacts`."""
    nodes: tuple[str, ...] = ()
    """That pass shards to each other; see `shard_server.py`."""
    own: str = ""
    streams: int = 4
    """Shards that come at once."""
    bytes_per_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


def stream_of(folder: Path) -> StreamSettings | None:
    """The settings of a prepared folder that streams; None of one that holds all its shards.
    DataError if they are damaged.
    """
    path = folder / STREAM
    if not path.exists():
        return None
    try:
        body = read_object(path, _MOST_BYTES)
        made = StreamSettings(**{**body, "nodes": tuple(body.get("nodes", ()))})
        for facts in made.shards.values():
            ShardFacts(**facts)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error})", _DAMAGED) from None
    return made


def room_needed(sizes: Sequence[Bytes], tokens: Sequence[int], window: int) -> Bytes:
    """The most bytes that the shards of one source take which a window of so many tokens touches,
    and the next window; `sizes` and `tokens` of all its shards in order. Pure.
    """
    if not sizes:
        return 0
    starts = np.cumsum([0, *tokens])
    ends = np.cumsum([0, *sizes])
    # The worst window begins at a shard's last token; its last target is one token further.
    last = np.searchsorted(starts, starts[1:] + window, side="left")
    touched = ends[np.minimum(last, len(sizes))] - ends[:-1]
    return int(min(2 * touched.max(), ends[-1]))


class Streaming:
    """The shards of one text that come when they are read. Threads end with the process."""

    def __init__(
        self,
        settings: StreamSettings,
        entries: Mapping[str, FileEntry],
        say: Say = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        self.cache = ShardCache(Path(settings.cache), settings.cache_bytes)
        self.entries = entries
        self._say, self._clock = say, clock or RealClock()
        files = StoreFiles(settings.address, throttle=Throttle(Pace(settings.bytes_per_s)))
        self._shards = PassedShards(self.cache, files, settings.nodes, settings.own, say)
        self._streams = settings.streams
        self._changed, self._pause = threading.Condition(), threading.Event()
        self._wanted: tuple[str, ...] = ()
        self._open: dict[str, Shard] = {}
        self._under_way: set[str] = set()
        self._refused: set[str] = set()
        """That could not be had ahead of use; whoever reads one asks again, and is told why."""
        self._waited_for = 0
        """Readers that wait for a shard now."""
        self._sign: Callable[[], None] = lambda: None
        self._threads: list[threading.Thread] = []

    def tell(self, say: Say) -> None:
        """Say from now on what goes wrong."""
        self._say = say

    def on_wait(self, sign: Callable[[], None]) -> None:
        """Let who waits for a shard give this sign of life, so that nobody takes it to hang."""
        self._sign = sign

    def waits(self) -> None:
        """Called now and then by a thread that waits for what others read."""
        if self._waited_for:
            self._sign()

    def want(self, names: Sequence[str]) -> None:
        """Let these come, in this order; all others may go. Returns at once."""
        with self._changed:
            if (wanted := tuple(dict.fromkeys(names))) == self._wanted:
                return
            self._wanted = wanted
            self._refused.clear()
            for name in self._open.keys() - set(wanted):
                del self._open[name]
            for name in self._open:
                self.cache.touch(self.entries[name])
            while len(self._threads) < min(self._streams, len(wanted)):
                thread = threading.Thread(target=self._run, name="bring shards", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def open(self, name: str) -> Shard:
        """A shard, once it is here.

        Raises:
            StoreError: nobody has given it for ten minutes.
            DataError: it is damaged in the store, or the cache is too small for it.
            NeedsPerson: the disk of the cache is full, or refuses.
        """
        with self._changed:
            if name in self._open:
                return self._open[name]
            self._waited_for += 1
        try:
            with self._changed:
                while name in self._under_way:
                    self._changed.wait()
                if name in self._open:
                    return self._open[name]
                self._under_way.add(name)
            return self._brought(name)
        finally:
            with self._changed:
                self._waited_for -= 1

    def _run(self) -> None:
        while True:
            with self._changed:
                while (name := self._next()) is None:
                    self._changed.wait()
                self._under_way.add(name)
            try:
                self._brought(name)
            except (LonghaulError, OSError) as error:
                self._say(f"WARNING: data: {name} did not come ahead of use: {error}")
                with self._changed:
                    self._refused.add(name)

    def _next(self) -> str | None:
        left = self._open.keys() | self._under_way | self._refused
        return next((name for name in self._wanted if name not in left), None)

    def _brought(self, name: str) -> Shard:
        shard = None
        try:
            shard = self._fetched(self.entries[name])
        finally:
            with self._changed:
                self._under_way.remove(name)
                if shard is not None:
                    self._open[name] = shard
                    others = [other for other in self._open if other not in self._wanted]
                    for other in others[:-_MOST_OTHERS]:
                        del self._open[other]
                self._changed.notify_all()
        return shard

    def _fetched(self, entry: FileEntry) -> Shard:
        began = self._clock.monotonic()
        while True:
            try:
                return self._shards.use(entry, Shard)
            except StoreError as error:
                waited = self._clock.monotonic() - began
                if waited > _PATIENCE_S:
                    raise
                self._say(
                    f"WARNING: data: {entry.name} does not come ({error}); asking again in "
                    f"{short_seconds(_AGAIN_S)}"
                )
                self._pause.wait(_AGAIN_S)
            except OSError as error:
                raise NeedsPerson(
                    f"{self.cache.folder}: {entry.name} cannot be kept ({error.strerror or error})",
                    "mend that, and start the run again",
                ) from error

    def refuse_without_room(self, sources: Sequence[Sequence[AnyShard]], window: int) -> None:
        """DataError if the cache cannot hold what is read of all sources, and what comes next;
        given the shards of each, and the tokens of a window.
        """
        needed = 0
        for shards in sources:
            sizes = [self.entries[shard.path.name].size_bytes for shard in shards]
            needed += room_needed(sizes, [shard.num_tokens for shard in shards], window)
        if needed > self.cache.most_bytes:
            raise DataError(
                f"{self.cache.folder}: room for {short_bytes(self.cache.most_bytes)}; shards of "
                f"windows of {window:,} tokens, and of the next ones, take {short_bytes(needed)}",
                "give the cache more room (`longhaul data pull --stream --cache-gb`); or, for a "
                "new run, a smaller order.shuffle_tokens",
            )


@dataclass(frozen=True)
class StreamedShard:
    """A shard that comes when it is read; as `Shard`, which see."""

    path: Path
    """Where it would be if the text was here as a whole."""
    facts: ShardFacts
    streaming: Streaming = field(repr=False)

    @property
    def _here(self) -> Shard:
        return self.streaming.open(self.path.name)

    @property
    def num_tokens(self) -> int:
        """Tokens, end-of-text included."""
        return self.facts.num_tokens

    @property
    def num_documents(self) -> int:
        """Documents."""
        return self.facts.num_documents

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of text, or 0."""
        return self.facts.num_bytes

    @property
    def tokenizer_sha256(self) -> str:
        """Of the tokenizer."""
        return self.facts.tokenizer_sha256

    @property
    def tokens(self) -> TokenArray:
        """[num_tokens]."""
        return self._here.tokens

    @property
    def document_ends(self) -> Offsets:
        """[num_documents]."""
        return self._here.document_ends

    def name(self, document: int) -> str:
        """Where a document came from."""
        return self._here.name(document)
