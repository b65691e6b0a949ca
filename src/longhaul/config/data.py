"""Where text comes from, how it is split, and how it becomes tokens."""

from typing import Literal

from pydantic import Field

from longhaul.config.section import Section, fixed


class SourceSection(Section):
    """One named body of text with a share of the training tokens."""

    name: str = fixed("", pattern=r"^[\w.-]*$")
    """Name in logs and per-source losses; the last part of `path` when empty."""
    path: str = fixed(min_length=1)
    """A file, a folder, `https://…`, `hf://…`, `s3://…`, or one of the built-in sources
    `python-stdlib`, `python-packages`, `synthetic`."""
    weight: float = fixed(1.0, gt=0)
    """Share of training tokens relative to the other sources' weights."""
    text_field: str = fixed("text")
    """Field that holds the text in JSON lines and Parquet."""
    sha256: str = fixed("", pattern=r"^([0-9a-f]{64})?$")
    """Expected hash of a single remote file; empty does not check."""


class HeldOutSection(Section):
    """Which text is kept for validation."""

    by: Literal["auto", "document", "tail"] = fixed("auto")
    """`document`: by a hash of each document's text, stable when the corpus grows.
    `tail`: the last tokens of each source. `auto`: by document where a source has at least
    200 of them, else its tail."""
    fraction: float = fixed(0.01, gt=0, lt=0.5)
    """Share of documents (or tokens, for `tail`) held out."""


class DataSection(Section):
    """The corpus."""

    sources: tuple[SourceSection, ...] = fixed(min_length=1)
    """One or more sources, mixed by weight."""
    drop_exact_duplicates: bool = fixed(True)
    """Keep one of several documents with the same text."""
    max_broken_fraction: float = fixed(0.001, ge=0, le=1)
    """Share of lines or files that may be broken before preparation stops with exit 3."""
    held_out: HeldOutSection = Field(default_factory=HeldOutSection)
    """The validation split."""


class TokenizerSection(Section):
    """How text becomes token numbers."""

    kind: Literal["bpe", "bytes", "characters", "file"] = fixed("bpe")
    """`bpe` is trained on this corpus; `characters` takes every character that occurs;
    `bytes` needs no training; `file` reads a `tokenizer.json`."""
    vocab_size: int | None = fixed(None, gt=1)
    """Tokens of a `bpe` vocabulary, end-of-text included; 8,192 when absent."""
    path: str | None = fixed(None)
    """The `tokenizer.json` for kind `file`: a path or an `https://`, `hf://`, `s3://` address."""
    end_of_text: bool = fixed(True)
    """Put an end-of-text token after every document."""
    training_mb: float = fixed(50.0, gt=0)
    """Most text, in MB, that a `bpe` tokenizer is trained on; taken evenly over the corpus."""
