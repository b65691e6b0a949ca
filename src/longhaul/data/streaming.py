"""Prepared text whose shards come from a store while they are read, and a little before.

```
prepared/NAME/dataset.json      as of every prepared folder, with held-out shards and tokenizer
prepared/NAME/stream.json       where the other shards are, the cache they come to, what is in them
```

`longhaul data pull --stream` makes such a folder. Which shards come next is for the order of draws
to say (`order.shuffle_tokens`); what a step reads is the same as if all of them lay there.
"""

import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from longhaul.core.addresses import without_secrets
from longhaul.core.errors import DataError, NeedsPerson
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
_PATIENCE_S: Seconds = 300.0
"""A store that does not give a shard for so long ends the attempt: well before ranks that wait in a
collective give up."""
_AGAIN_S: Seconds = 10.0
_TOUCH_EVERY_S: Seconds = 60.0
_MOST_FILES = 1 << 16
_PASSING = (StoreError, DataError)
"""Errors that may be gone when it is tried again: of the store, or of a cache that others fill."""
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
    return _read(path, path.stat().st_mtime_ns, path.stat().st_ino)


@lru_cache(maxsize=4)
def _read(path: Path, mtime_ns: int, inode: int) -> StreamSettings:
    """Kept while it stays the same: of a hundred thousand shards it takes a second."""
    try:
        body = read_object(path, _MOST_BYTES)
        made = StreamSettings(**{**body, "nodes": tuple(body.get("nodes", ()))})
        for facts in made.shards.values():
            ShardFacts(**facts)
    except (OSError, ValueError, TypeError, AttributeError) as error:
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
    """The shards of one text that come when they are read. Nothing is asked for before the first
    is; threads end with the process, or at `close`.
    """

    def __init__(self, settings: StreamSettings, entries: Mapping[str, FileEntry]) -> None:
        self.cache = ShardCache(Path(settings.cache), settings.cache_bytes)
        self.entries = entries
        self.processes = 1
        """That share the ceiling of all copies."""
        self._settings = settings
        self._changed = threading.Condition()
        self._say: Say = lambda text: None
        self._sign: Callable[[], None] = lambda: None
        self._shards: PassedShards | None = None
        self._wanted: tuple[str, ...] = ()
        self._urgent: list[str] = []
        """Somebody waits for them now."""
        self._open: dict[str, Shard] = {}
        self._under_way: set[str] = set()
        self._refused: dict[str, tuple[Exception, Seconds]] = {}
        """Why they did not come, and when they are asked for again."""
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._touched: Seconds = 0.0

    def tell(self, say: Say) -> None:
        """Say from now on what goes wrong."""
        self._say = say

    def on_wait(self, sign: Callable[[], None]) -> None:
        """Let who waits for a shard give this sign of life, so that nobody takes it to hang."""
        self._sign = sign

    def waits(self) -> None:
        """Called now and then by a thread that waits for what others read."""
        if self._urgent:
            self._sign()

    def want(self, names: Sequence[str]) -> None:
        """Let these come, in this order; all others may go. Returns at once."""
        with self._changed:
            if (wanted := tuple(dict.fromkeys(names))) == self._wanted:
                return
            self._wanted, self._touched = wanted, 0.0
            for name in self._open.keys() - set(wanted):
                del self._open[name]
            self._begin()

    def open(self, name: str) -> Shard:
        """A shard, once it is here.

        Raises:
            StoreError, DataError: it has not come for five minutes, and why.
            NeedsPerson: the disk of the cache is full, or refuses.
            UsageError, RecipeError: the store's address cannot be used here.
        """
        until = time.monotonic() + _PATIENCE_S
        with self._changed:
            if name in self._open:
                return self._open[name]
            self._urgent.append(name)
            self._refused.pop(name, None)
            self._begin()
            try:
                while name not in self._open:
                    left = until - time.monotonic()
                    error, _ = self._refused.get(name, (None, 0.0))
                    if error is not None and (left <= 0 or not isinstance(error, _PASSING)):
                        raise error
                    if left <= 0 or self._closed:
                        raise StoreError(
                            f"{name} has not come from {without_secrets(self._settings.address)}"
                        )
                    self._changed.wait(left)
                return self._open[name]
            finally:
                self._urgent.remove(name)

    def close(self) -> None:
        """Nothing comes any more; who waits is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def refuse_without_room(self, sources: Sequence[Sequence[AnyShard]], window: int) -> None:
        """DataError if the cache cannot hold what is read of all sources, and what comes next;
        given the shards of each, and the tokens of a window.
        """
        needed = 0
        for shards in sources:
            sizes = [self.entries[shard.path.name].size_bytes for shard in shards]
            needed += room_needed(sizes, [shard.num_tokens for shard in shards], window)
        room = self.cache.most_bytes - sum(
            one.size_bytes for one in self.cache.held() if one.linked
        )
        if needed > room:
            raise DataError(
                f"{self.cache.folder}: room for {short_bytes(max(0, room))}; shards of "
                f"windows of {window:,} tokens, and of the next ones, take {short_bytes(needed)}",
                "give the cache more room (`longhaul data pull --stream --cache-gb`); or, for a "
                "new run, a smaller order.shuffle_tokens",
            )

    def _begin(self) -> None:
        """Have threads at work; the lock is held."""
        while len(self._threads) < self._settings.streams and not self._closed:
            thread = threading.Thread(target=self._run, name="bring shards", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (name := self._next()) is None and not self._closed:
                    self._keep()
                    self._changed.wait(_AGAIN_S)
                if name is None or self._closed:
                    return
                self._under_way.add(name)
            self._came(name, *self._fetched(name))

    def _fetched(self, name: str) -> tuple[Shard | None, Exception | None]:
        """The shard, or why it does not come: whatever it is, who reads it is told."""
        try:
            return self._source().use(self.entries[name], Shard), None
        except OSError as error:
            words = f"{self.cache.folder}: {name} cannot be kept ({error.strerror or error})"
            return None, NeedsPerson(words, "mend that, and start the run again")
        except Exception as error:  # noqa: BLE001
            return None, error

    def _came(self, name: str, shard: Shard | None, error: Exception | None) -> None:
        with self._changed:
            self._under_way.remove(name)
            is_news = name in self._urgent or name not in self._refused
            if shard is not None:
                self._refused.pop(name, None)
                self._open[name] = shard
                others = [o for o in self._open if o not in self._wanted and o not in self._urgent]
                for other in others[:-_MOST_OTHERS]:
                    del self._open[other]
            elif error is not None:
                self._refused[name] = error, time.monotonic() + _AGAIN_S
            self._changed.notify_all()
        if error is not None and is_news:
            again = f"asking again in {short_seconds(_AGAIN_S)}"
            self._say(f"WARNING: data: {name} does not come ({error}); {again}")

    def _next(self) -> str | None:
        now = time.monotonic()
        left = self._open.keys() | self._under_way
        left |= {name for name, (_, due) in self._refused.items() if now < due}
        return next((name for name in (*self._urgent, *self._wanted) if name not in left), None)

    def _keep(self) -> None:
        """Let others go from the cache before what is read, and that before what comes next."""
        if time.monotonic() - self._touched > _TOUCH_EVERY_S:
            self._touched = time.monotonic()
            for name in reversed(self._wanted):
                self.cache.touch(self.entries[name])

    def _source(self) -> PassedShards:
        with self._changed:
            if self._shards is None:
                made, limit = self._settings, self._settings.bytes_per_s
                pace = Pace(None if limit is None else limit / self.processes)
                files = StoreFiles(made.address, throttle=Throttle(pace))
                self._shards = PassedShards(
                    self.cache, files, made.nodes, made.own, lambda text: self._say(text)
                )
                _allow_many_files()
            return self._shards


def _allow_many_files() -> None:
    """Each shard that is mapped holds a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))


class StreamedShard:
    """A shard that comes when it is read; as `Shard`, which see. `path` is where it would be if the
    text was here as a whole.
    """

    def __init__(self, path: Path, facts: ShardFacts, streaming: Streaming) -> None:
        self.path, self._streaming = path, streaming
        self.num_tokens, self.num_documents = facts.num_tokens, facts.num_documents
        self.num_bytes, self.tokenizer_sha256 = facts.num_bytes, facts.tokenizer_sha256

    @property
    def tokens(self) -> TokenArray:
        """[num_tokens]."""
        return self._streaming.open(self.path.name).tokens

    @property
    def document_ends(self) -> Offsets:
        """[num_documents]."""
        return self._streaming.open(self.path.name).document_ends

    def name(self, document: int) -> str:
        """Where a document came from."""
        return self._streaming.open(self.path.name).name(document)
