"""Where text comes from, how it is split, how it becomes tokens, and how many make one step."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from longhaul.config.corpus import Adapter, CleanSection, FilterSection
from longhaul.config.section import Section, changed_at_start, fixed, whole_or_auto


class SourceSection(Section):
    """One named body of text with a share of the training tokens."""

    name: str = fixed("", pattern=r"^[\w.-]*$")
    """Name in logs and per-source losses; the last part of `path` when empty."""
    path: str = fixed(min_length=1)
    """A file, a folder, `https://…`, `hf://…`, `s3://…`, or one of the built-in sources
    `python-stdlib`, `python-packages`, `synthetic`."""
    weight: float = changed_at_start(1.0, ge=0)
    """Share of training tokens relative to the other sources' weights; with 0 a source is prepared
    and evaluated, and not trained on."""
    max_epochs: float | None = changed_at_start(None, gt=0)
    """Most times that the source is read; from there on its share goes to the others."""
    text_field: str = fixed("text")
    """Field or column that holds the text in JSON lines, in tables and in the JSON of a tar."""
    format: Literal["auto", "nanogpt", "llm.c", "megatron"] = fixed("auto")
    """What the files are. `auto`: text, tables or archives by their names; a `.bin` is llm.c's
    (modded-nanogpt's) by its magic, Megatron-LM's by the `.idx` beside it. nanoGPT's `.bin` has no
    sign of its own, and a folder of tokens is not told from one of text: name the format."""
    sha256: str = fixed("", pattern=r"^([0-9a-f]{64})?$")
    """Expected hash of a single remote file; empty does not check."""
    adapter: Adapter = fixed("")
    """What makes documents of the source's records: `discussion` takes each tree's longest chain,
    `questions` a question and its best answers, `mail` what somebody wrote, without headers, quotes
    and signature, `proceedings` pages without their heads, feet and hyphens."""
    url_field: str = fixed("")
    """Field that holds a page's address in JSON lines and Parquet, for lists of domains."""
    filtered: bool = fixed(True)
    """Whether `data.filters` judge this source; most of their rules are for prose, not code."""


class HeldOutSection(Section):
    """Which text is kept for validation."""

    by: Literal["auto", "document", "tail"] = fixed("auto")
    """`document`: by a hash of each document's text, stable when the corpus grows.
    `tail`: the last tokens of each source. `auto`: by document where a source has at least
    200 of them, else its tail; of tokens made elsewhere, the files with `val` in their names
    where there are such."""
    fraction: float = fixed(0.01, gt=0, lt=0.5)
    """Share of documents (or tokens, for `tail`) held out."""


class MixtureStage(Section):
    """Other weights from a draw on, as for annealing on better text at the end."""

    from_draw: int = fixed(gt=0)
    """First draw of the stage. A draw is a block of the run's longest sequence length: with
    256 sequences of it a step, step 1,000 begins at draw 256,000."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = fixed(min_length=1)
    """Weight by name of source; 0 leaves it out, and who is not named keeps its own."""


class ContaminationSection(Section):
    """Documents to train on that hold what the model is judged by (`docs/data.md`)."""

    action: Literal["off", "report", "remove"] = fixed("off")
    """Look for them and count them, or leave them out as well."""
    evaluation_sets: tuple[str, ...] = fixed(())
    """Files, folders or addresses of text, as in `data.sources.path`: beside what is held out by
    document, which always counts."""
    max_share: float = fixed(0.2, ge=0, lt=1)
    """Most of one evaluation document, in runs of 13 words, that a document may hold; with 0 not
    one of its runs (GPT-3's rule)."""


class DedupSection(Section):
    """Near-duplicates: documents of which most runs of five words are the same (`docs/data.md`)."""

    threshold: float | None = fixed(None, ge=0.3, le=1)
    """Jaccard similarity of their sets of five words in a row from which on two documents are one:
    0.8 is usual (Lee et al., arXiv 2107.06499), OPT took 0.95. When absent, none is looked for."""
    keep: Literal["first", "longest"] = fixed("first")
    """Which one of several stays: the first in the recipe's order, or the longest."""
    paragraphs: int | None = fixed(None, gt=0)
    """Documents that a paragraph of 20 characters or more may stand in; one that stands in more is
    cut from all but the first. When absent, none is."""


class DataSection(Section):
    """The corpus."""

    sources: tuple[SourceSection, ...] = changed_at_start(min_length=1)
    """One or more sources, mixed by weight. At a start a run may get others beside those it has, or
    lose some; what one consists of stays."""
    temperature: float | None = changed_at_start(None, gt=0)
    """Multiplies each weight by the source's tokens to the power of 1/temperature: at 1 equal
    weights give shares by size, and the higher it is, the more of small sources is read (arXiv
    1907.05019). When absent, weights alone decide."""
    stages: tuple[MixtureStage, ...] = changed_at_start(())
    """Changes of the mixture. Each source goes on where the stage before left it."""
    loss_from: str = fixed("")
    """A piece of text that is one token, such as one added to a tokenizer of kind `file`: in each
    document only what stands behind its first occurrence, with end-of-text, counts in the loss.
    For pairs in one document: a source and its translation, a question and its answer. Where a
    window begins within a document, what is known of it is what the window shows. Empty counts all.
    """
    drop_exact_duplicates: bool = fixed(True)
    """Keep one of several documents with the same text; not among tokens made elsewhere."""
    dedup: DedupSection = Field(default_factory=DedupSection)
    """Documents that are nearly the same, dropped too."""
    max_broken_fraction: float = fixed(0.001, ge=0, le=1)
    """Share of lines or files that may be broken before preparation stops with exit 3."""
    held_out: HeldOutSection = Field(default_factory=HeldOutSection)
    """The validation split."""
    contamination: ContaminationSection = Field(default_factory=ContaminationSection)
    """Training documents that hold text of it, or of other evaluation sets."""
    clean: CleanSection = Field(default_factory=CleanSection)
    """What is changed in every text."""
    filters: FilterSection = Field(default_factory=FilterSection)
    """Which documents are left out."""

    def stage_at(self, draw: int) -> int:
        """How many stages have begun at a draw; 0 while the sources' own weights hold."""
        return sum(stage.from_draw <= draw for stage in self.stages)


class TokenizerSection(Section):
    """How text becomes token numbers."""

    kind: Literal["bpe", "bytes", "characters", "file", "numbers"] = fixed("bpe")
    """`bpe` is trained on this corpus; `characters` takes every character that occurs;
    `bytes` needs no training; `file` reads one that exists; `numbers` is for tokens made
    elsewhere whose tokenizer is not at hand: it knows `vocab_size` numbers and no text, and
    bits per byte are not given."""
    vocab_size: int | None = fixed(None, gt=1)
    """Tokens of a `bpe` vocabulary, end-of-text included (8,192 when absent), or of `numbers`."""
    path: str | None = fixed(None)
    """The tokenizer for kind `file`: a `tokenizer.json`, a SentencePiece `.model`, or GPT-2's
    `vocab.bpe` or `merges.txt` with `encoder.json` or `vocab.json` beside it. A path or an
    `https://`, `hf://`, `s3://` address."""
    end_of_text: bool | Annotated[str, Field(min_length=1)] = fixed(True)
    """Put an end-of-text token after every document. In tokens made elsewhere it is the sign by
    which documents are told apart; for `numbers` it is the last number, as in GPT-2's 50,257.
    Kind `file` also takes the name of any token that no text becomes, such as `<|im_end|>`."""
    begin_of_text: bool | Annotated[str, Field(min_length=1)] = fixed(False)
    """Put a begin-of-text token before every document, as Llama does: the file's own
    (`<|begin_of_text|>`, `<s>`, `<bos>` or `[BOS]`), or that of a name. For kind `file`."""
    training_mb: float = fixed(50.0, gt=0)
    """Most text, in MB, that a `bpe` tokenizer is trained on; taken evenly over the corpus."""


def _count_or_auto(value: Any) -> Any:
    return None if value is None else whole_or_auto(value, 1)


_CountOrAuto = Annotated[int, Field(gt=0)] | Literal["auto"] | None


class BatchStage(Section):
    """Batch shape from a step on."""

    from_step: int = fixed(ge=0)
    """First step count of this stage."""
    sequences: int = fixed(gt=0)
    """Sequences in the global batch."""
    sequence_length: int = fixed(gt=0)
    """Tokens in a sequence; must divide the longest sequence length."""


class BatchSection(Section):
    """The global batch: the same for every number of devices."""

    sequences: int = fixed(gt=0)
    """Sequences in the global batch."""
    sequence_length: int | None = fixed(None, gt=0)
    """Tokens in a sequence; the model's context when absent."""
    micro_sequences: Annotated[
        _CountOrAuto, PlainValidator(_count_or_auto, json_schema_input_type=_CountOrAuto)
    ] = changed_at_start(None)
    """Sequences computed at once on one device; the whole batch when absent. Must divide every
    stage's `sequences`; the gradient is accumulated over the rest.

    `auto` takes the largest that fits, measured at the run's first start with one sequence and
    with two, as long as the longest of the run: on an NVIDIA GPU within 90 % of its free memory,
    tried out once; elsewhere within a quarter of the host's available memory, as a larger one is
    no faster there. The choice is kept in the ledger, because another would give other bits: later
    starts use it whatever memory they find, until the recipe gives a number instead."""
    stages: tuple[BatchStage, ...] = fixed(())
    """A curriculum: later stages replace `sequences` and `sequence_length` from their step on."""
