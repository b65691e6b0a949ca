"""Prepared data as training reads it: token streams by source and split, in one folder."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.core.strict import parse_json, read_bytes, read_object
from longhaul.core.units import Bytes, short_bytes, short_count
from longhaul.data.shards import STREAM, AnyShard, Shard, ShardFacts
from longhaul.data.tokenizing import END_OF_TEXT, TokenArray, Tokenizer, Wanted, recognised

if TYPE_CHECKING:
    from longhaul.data.streaming import Streaming

DATASET_FORMAT = 1
MAX_TOKENIZER_BYTES: Bytes = 256 << 20
_MOST_MODEL_BYTES: Bytes = 32 << 20
# The largest published one takes 5 MB; one of nothing but empty pieces takes 41 times its size.
_MOST_MANIFEST_BYTES: Bytes = 64 << 20
MANIFEST = "dataset.json"
_TOKENIZERS = "give the tokenizer.json of a Hugging Face tokenizer, or a SentencePiece .model"


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """Where a document lies in a stream: begin ≤ position < end, end-of-text included."""

    name: str
    """Where it came from, such as `peps.jsonl:17`."""
    begin: int
    end: int


class TokenStream:
    """One split of one source: several shards, seen as one line of tokens.

    `num_tokens` counts end-of-text too, `num_documents` one that a tail split cuts on both sides;
    `num_bytes` of UTF-8 text are 0 where that is not known; `paths` are the files of `shards`.
    """

    def __init__(self, shards: Sequence[AnyShard]) -> None:
        self.paths = tuple(shard.path for shard in shards)
        self.shards = tuple(shards)
        self._windows: TokenArray | None = None
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.num_bytes = sum(shard.num_bytes for shard in shards)
        self._starts = np.cumsum([0, *(shard.num_tokens for shard in shards)])

    def gather(self, begins: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """(R, length) tokens of windows at (R,) positions; IndexError outside the stream."""
        if not len(begins):
            return np.empty((0, length), np.int64)
        if not 0 <= begins.min() <= begins.max() <= self.num_tokens - length:
            raise IndexError(
                f"windows of {length} tokens from {begins.min()} to {begins.max()} do not lie "
                f"within a stream of {self.num_tokens}"
            )
        if len(self.shards) == 1 and isinstance(self.shards[0], Shard):
            # A view of every window there is, of which rows are copied whole: 0.3 ms for 500
            # rows of 1,025 tokens, against 1.3 ms when each token's position is looked up.
            if self._windows is None or self._windows.shape[1] != length:
                view = np.lib.stride_tricks.sliding_window_view
                self._windows = view(self.shards[0].tokens, length)
            return self._windows[begins].astype(np.int64)
        windows = np.empty((len(begins), length), np.int64)
        firsts = np.searchsorted(self._starts, begins, side="right") - 1
        for row, (begin, first) in enumerate(zip(begins.tolist(), firsts.tolist(), strict=True)):
            self._copy(windows[row], begin, first)
        return windows

    def _copy(self, window: npt.NDArray[np.int64], begin: int, number: int) -> None:
        filled = 0
        while filled < len(window):
            tokens = self.shards[number].tokens
            start = begin + filled - int(self._starts[number])
            part = tokens[start : start + len(window) - filled]
            window[filled : filled + len(part)] = part
            filled += len(part)
            number += 1

    def files_of(self, begin: int, end: int) -> tuple[str, ...]:
        """Names of the shards that hold the tokens at begin ≤ position < end."""
        first, last = np.searchsorted(self._starts, [begin, end - 1], side="right").tolist()
        return tuple(path.name for path in self.paths[first - 1 : last])

    def documents_in(self, begin: int, end: int) -> list[DocumentSpan]:
        """Every document with a token at begin ≤ position < end, in order, in its full extent."""
        spans: list[DocumentSpan] = []
        for shard, start in zip(self.shards, self._starts.tolist(), strict=False):
            low, high = max(begin - start, 0), min(end - start, shard.num_tokens) - 1
            if low <= high:
                ends, wanted = shard.document_ends, np.array([low, high], "<u8")
                first, last = np.searchsorted(ends, wanted, side="right").tolist()
                before = int(ends[first - 1]) if first else 0
                for number in range(first, min(last + 1, shard.num_documents)):
                    after = int(ends[number])
                    spans.append(DocumentSpan(shard.name(number), start + before, start + after))
                    before = after
        return spans


@dataclass(frozen=True, slots=True)
class SourceTokens:
    """One source's two splits."""

    name: str
    weight: float
    """Share of training tokens relative to the other sources."""
    split: str
    """How validation text was chosen: `document`, `file` or `tail`."""
    train: TokenStream
    held_out: TokenStream


@dataclass(frozen=True)
class Dataset:
    """A prepared folder."""

    folder: Path
    identity: str
    """Hash over tokens, tokenizer, names and weights; neither place nor time count."""
    vocab_size: int
    sources: tuple[SourceTokens, ...]
    """In the order of the recipe."""
    prepared: str
    """Day and time (UTC) it was made."""
    uses_end_of_text: Wanted
    """Documents of text end with that token; tokens made elsewhere are as they were."""
    tokenizer_file: str
    """Its name in the folder."""
    uses_begin_of_text: Wanted = False
    """Documents of text begin with that token."""
    streaming: "Streaming | None" = None
    """What brings the shards to train on, where they are not in the folder."""
    continues: tuple[str, ...] = ()
    """Identities that a run had before sources were added or taken away: those that it has still
    are what they were."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; loaded on first use, because training itself needs none."""
        path = self.folder / self.tokenizer_file
        return load_tokenizer(path, self.uses_end_of_text, self.uses_begin_of_text)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sources and splits."""
        return sum(s.train.num_tokens + s.held_out.num_tokens for s in self.sources)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of text in all sources and splits."""
        return sum(s.train.num_bytes + s.held_out.num_bytes for s in self.sources)

    def summary(self) -> str:
        """One line a source."""
        return "\n".join(
            f"{s.name}: {short_count(s.train.num_tokens)} tokens to train on "
            f"({s.train.num_documents:,} documents, {_text_of(s.train)}), "
            f"{short_count(s.held_out.num_tokens)} held out by {s.split}"
            for s in self.sources
        )

    def table(self) -> str:
        """What each source holds, both splits together; a document that a tail split cuts counts on
        both sides.
        """
        rows = [("source", "documents", "MB", "tokens", "bytes a token", "held out", "by")]
        for s in self.sources:
            num_tokens = s.train.num_tokens + s.held_out.num_tokens
            num_bytes = s.train.num_bytes + s.held_out.num_bytes
            rows.append(
                (
                    s.name,
                    f"{s.train.num_documents + s.held_out.num_documents:,}",
                    f"{num_bytes / 1e6:,.1f}" if num_bytes else "not known",
                    f"{num_tokens:,}",
                    f"{num_bytes / num_tokens:.2f}" if num_bytes else "not known",
                    f"{s.held_out.num_tokens:,}",
                    s.split,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if at in (0, len(row) - 1) else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def _text_of(stream: TokenStream) -> str:
    if not stream.num_bytes:
        return "bytes of text not known"
    return (
        f"{short_bytes(stream.num_bytes)}, {stream.num_bytes / stream.num_tokens:.2f} bytes a token"
    )


def identity_of(manifest: dict[str, Any]) -> str:
    """Hash over what a manifest says about content; equal data gives equal identities."""
    content = {
        "format": manifest["format"],
        "tokenizer": {key: manifest["tokenizer"][key] for key in ("sha256", "vocab_size")},
        "sources": [
            {
                "name": source["name"],
                "weight": source["weight"],
                "shards": {
                    side: [shard["sha256"] for shard in source[side]]
                    for side in ("train", "held_out")
                },
            }
            for source in manifest["sources"]
        ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shards_of(manifest: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Name of each source → hashes of its shards, to train on and held out."""
    return {
        source["name"]: [[s["sha256"] for s in source[side]] for side in ("train", "held_out")]
        for source in manifest["sources"]
    }


def open_dataset(folder: Path) -> Dataset:
    """Open a prepared folder by its headers alone; DataError if damaged, or of a newer format."""
    manifest = read_manifest(folder)
    tokenizer, streaming, elsewhere = manifest["tokenizer"], None, dict[str, AnyShard]()
    if (folder / STREAM).exists():
        streaming, elsewhere = _streamed(folder, manifest)
    sources = []
    for source in manifest["sources"]:
        train, held_out = (
            TokenStream([
                _made_with(
                    elsewhere.get(shard["file"]) or Shard(folder / shard["file"]), folder, tokenizer
                )
                for shard in source[side]
            ])
            for side in ("train", "held_out")
        )  # fmt: skip
        sources.append(
            SourceTokens(source["name"], source["weight"], source["split"], train, held_out)
        )
    return Dataset(
        folder,
        identity_of(manifest),
        tokenizer["vocab_size"],
        tuple(sources),
        manifest["prepared"],
        tokenizer["end_of_text"],
        tokenizer["file"],
        tokenizer.get("begin_of_text", False),
        streaming,
    )


def _streamed(folder: Path, manifest: dict[str, Any]) -> tuple["Streaming", dict[str, AnyShard]]:
    # It imports what reads stores, which no other text needs.
    from longhaul.data.streaming import StreamedShard, Streaming, stream_of
    from longhaul.store.manifest import FileEntry

    settings, listed = stream_of(folder), listed_files(manifest)
    assert settings is not None
    entries = {
        name: FileEntry(name, listed[name]["bytes"], listed[name]["sha256"])
        for name in settings.shards
        if name in listed
    }
    streaming = Streaming(settings, entries)
    return streaming, {
        name: StreamedShard(folder / name, ShardFacts(**settings.shards[name]), streaming)
        for name in entries
    }


def load_tokenizer(
    path: Path, end_of_text: Wanted = True, begin_of_text: Wanted = False
) -> Tokenizer:
    """The tokenizer in a `tokenizer.json` or a SentencePiece `.model`; DataError if it is none."""
    if path.suffix.lower() == ".model":
        from longhaul.data.sentencepiece import SentencePieceTokenizer

        model = _read(path, _MOST_MODEL_BYTES)
        return SentencePieceTokenizer(model, end_of_text, str(path), begin_of_text)
    content = _read(path, MAX_TOKENIZER_BYTES)
    try:
        vocabulary = parse_json(content, path.name)
        if not isinstance(vocabulary, dict) or "model" not in vocabulary:
            raise ValueError("it has no 'model'")
    except ValueError as error:
        raise DataError(f"{path}: not a tokenizer.json ({error})", _TOKENIZERS) from None
    usual = end_of_text in (True, False, END_OF_TEXT) and not begin_of_text
    if usual and (known := recognised(vocabulary, bool(end_of_text))) is not None:
        return known
    from longhaul.data.subwords import SubwordTokenizer

    return SubwordTokenizer(content, end_of_text, str(path), begin_of_text)


def _read(path: Path, most: Bytes) -> bytes:
    try:
        return read_bytes(path, most)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a tokenizer's file ({error})", _TOKENIZERS) from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; DataError unless it is whole and every file it lists is there in full size."""
    path = folder / MANIFEST
    if not path.exists():
        raise DataError(
            f"{folder}: no prepared data ({MANIFEST} is missing)",
            "prepare it with `longhaul data prepare RECIPE`",
        )
    try:
        manifest: dict[str, Any] = read_object(path, _MOST_MANIFEST_BYTES)
        if manifest["format"] != DATASET_FORMAT:
            raise DataError(
                f"{folder}: data format {manifest['format']}; this longhaul reads {DATASET_FORMAT}",
                "prepare the data again",
            )
        identity_of(manifest)
        for name, facts in files_here(folder, manifest).items():
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                raise _damaged(folder, f"{name} is {size:,} bytes instead of {facts['bytes']:,}")
    except FileNotFoundError as error:
        raise _damaged(folder, f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"{MANIFEST}: {error}") from None
    return manifest


def listed_files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """File name → {file, bytes, sha256} for every file of a prepared folder."""
    facts = [manifest["tokenizer"]]
    for source in manifest["sources"]:
        facts += [*source["train"], *source["held_out"]]
    return {item["file"]: item for item in facts}


def files_here(folder: Path, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those of `listed_files` that the folder itself holds: all, unless it streams."""
    listed = listed_files(manifest)
    if (folder / STREAM).exists():
        from longhaul.data.streaming import stream_of

        settings = stream_of(folder)
        elsewhere = settings.shards.keys() if settings else set()
        listed = {name: facts for name, facts in listed.items() if name not in elsewhere}
    return listed


def _made_with(shard: AnyShard, folder: Path, tokenizer: dict[str, Any]) -> AnyShard:
    if shard.tokenizer_sha256 != tokenizer["sha256"]:
        raise _damaged(folder, f"{shard.path.name} was made with another tokenizer")
    return shard


def _damaged(folder: Path, detail: str) -> DataError:
    return DataError(f"{folder}: damaged ({detail})", "delete the folder and prepare it again")
