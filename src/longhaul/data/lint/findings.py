"""Findings: which facts would embarrass a run, by thresholds with their reasons. Judges, and reads
nothing.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longhaul.core.units import short_bytes
from longhaul.data.lint.facts import SourceFacts
from longhaul.data.lint.leakage import Leak
from longhaul.data.lint.signs import Sign, excerpt

_CERTAIN = 0.1
"""Share of documents from which on one or two are enough; below it takes three."""
_FEWEST = 3
_TIMES_OTHERS = 8
"""Half of a floor is a finding in a source that has so many times the share of all others."""
_FEWEST_COMPARED = 10
_FEWEST_ELSEWHERE = 200
"""Documents of other sources, to compare with."""

COPIES = 0.05
"""A twentieth of a source twice; data.drop_exact_duplicates costs nothing."""
BOILERPLATE = 0.05
"""Share of a source's text in lines that a tenth of its documents have; the clean corpora have
0.4 %."""
TEMPLATED = 0.05
"""Share of pieces; the clean corpora have up to 1.6 %."""
DOMINATING = 0.2
"""Share of a source's bytes in one document; the clean corpora have up to 2.4 %."""
_FEWEST_FOR_DOMINATING = 10
"""A source of fewer documents is dominated by its documents as such."""
PREDICTABLE_BITS = 1.2
"""Bits a byte. No piece of the clean corpora has fewer than 1.4; text that is copied has 0.2."""
PREDICTABLE = 0.05
GIBBERISH_BITS = 5.5
"""Bits a byte. The clean corpora have 2.7 to 3.2 in all; random letters have 6.4, base64 7.4."""
GIBBERISH = 0.15
"""Share of pieces; 5 % of Python's library are tables of codes, keys and names."""
LEAKED = 0.1
"""Share of held-out documents; in Python's library, whose tables of codes are near copies of each
other, it is 6 %."""
_FEWEST_LEAKED = 3
_EXAMPLES = 3
_EXCERPT = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that somebody should look at before a model learns it."""

    kind: str
    source: str
    share: float
    """Of what `sentence` says (0 to 1)."""
    sentence: str
    remedy: str
    examples: tuple[str, ...] = ()
    where: tuple[int, ...] = ()
    """Affected documents of each stretch of the source, in its order."""
    stretch: int = 1
    """Documents of such a stretch."""


def findings(sources: Sequence[SourceFacts]) -> list[Finding]:
    """Of all sources, in their order."""
    return [
        finding
        for facts in sources
        for judge in _JUDGES
        for finding in judge(facts, [other for other in sources if other is not facts])
    ]


def is_telling(sign: Sign, elsewhere: Sequence[Sign] = ()) -> bool:
    """Whether a sign in a source, compared with that of other sources, is a finding."""
    share, check = sign.share, sign.check
    enough = sign.documents >= _FEWEST or share >= _CERTAIN
    if not enough or share > check.ceiling:
        return False
    if share >= check.floor:
        return True
    eligible = sum(other.eligible for other in elsewhere)
    usual = (1 + sum(other.documents for other in elsewhere)) / max(1, eligible)
    enough = eligible >= _FEWEST_ELSEWHERE and sign.documents >= _FEWEST_COMPARED
    odd = enough and share >= _TIMES_OTHERS * usual
    return odd and share >= check.floor / 2


def _signs(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    for number, sign in enumerate(facts.signs):
        elsewhere = [other.signs[number] for other in others]
        if not is_telling(sign, elsewhere):
            continue
        which = "" if sign.eligible == facts.num_documents else " that could show them"
        sentence = f"{sign.documents:,} of {sign.eligible:,} documents{which} ({sign.share:.2%})"
        if sign.occurrences != sign.documents:
            sentence += f", {sign.occurrences:,} in all"
        if elsewhere:
            eligible = max(1, sum(other.eligible for other in elsewhere))
            usual = sum(other.documents for other in elsewhere) / eligible
            sentence += f"; the other sources have {usual:.2%}"
        yield Finding(
            sign.kind, facts.name, sign.share, sentence, sign.check.remedy,
            tuple(sign.examples), _stretches(sign, facts.num_documents), sign.stretch,
        )  # fmt: skip


def _stretches(sign: Sign, num_documents: int) -> tuple[int, ...]:
    whole = -(-num_documents // sign.stretch)
    return (*sign.where, *[0] * (whole - len(sign.where)))


def _copies(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    if facts.copies >= COPIES and facts.copies * facts.num_documents >= _FEWEST:
        yield Finding(
            "exact copies", facts.name, facts.copies,
            f"{facts.copies:.1%} of its documents are copies of earlier ones",
            "leave data.drop_exact_duplicates on, and look why they are there", facts.copied,
        )  # fmt: skip


def _boilerplate(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    if facts.shared_bytes >= BOILERPLATE:
        yield Finding(
            "boilerplate", facts.name, facts.shared_bytes,
            f"{facts.shared_bytes:.1%} of its text are lines that a tenth of its documents have",
            "remove such lines and paragraphs by deduplication",
            tuple(
                f"in {count:,} documents: {excerpt(line[:_EXCERPT])}"
                for line, count in facts.shared_lines[:_EXAMPLES]
            ),
        )  # fmt: skip


def _templates(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    share = len(facts.templated) / max(1, len(facts.pieces))
    if share >= TEMPLATED:
        yield Finding(
            "repeated templates", facts.name, share,
            f"{share:.1%} of a sample of {len(facts.pieces):,} pieces are one shape with other "
            "names and numbers",
            "keep a few of them: a model learns the shape at once, and its loss flatters it",
            tuple(
                f"{piece.name}: {excerpt(piece.text[:_EXCERPT])}"
                for piece in facts.templated[:_EXAMPLES]
            ),
        )  # fmt: skip


def _dominating(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    size, name = facts.largest
    share = size / max(1, facts.num_bytes)
    if facts.num_documents >= _FEWEST_FOR_DOMINATING and share >= DOMINATING:
        yield Finding(
            "one document dominates", facts.name, share,
            f"{name} is {short_bytes(size)}, {share:.1%} of the source",
            "look whether it is text at all; give it a source of its own with a weight",
            (name,),
        )  # fmt: skip


def _predictability(facts: SourceFacts, others: Sequence[SourceFacts]) -> Iterator[Finding]:
    if facts.predicted is None:
        return
    own, elsewhere = facts.predicted.own, facts.predicted.others
    usual = f"{statistics.median(own):.2f} bits a byte is its median"
    yield from _by_bits(
        facts, own, lambda bits: bits <= PREDICTABLE_BITS, PREDICTABLE, "too predictable",
        f"a small n-gram model of half of the source predicts {{share}} of the other half at "
        f"{PREDICTABLE_BITS:g} bits a byte or less, where copies and generated text are ({usual})",
        "look for copied paragraphs and generated text, and deduplicate by paragraph",
    )  # fmt: skip
    yield from _by_bits(
        # A language that stands in half of a source only is no gibberish to who has seen it.
        facts, [min(both) for both in zip(own, elsewhere or own, strict=True)],
        lambda bits: bits >= GIBBERISH_BITS, GIBBERISH, "gibberish",
        f"small n-gram models of half of the source and of the others need {GIBBERISH_BITS:g} bits "
        f"a byte or more for {{share}} of it, as for random letters ({usual})",
        "look for encoded data, broken extraction and encryption, and leave it out",
    )  # fmt: skip
    yield from _by_bits(
        facts, elsewhere, lambda bits: bits <= PREDICTABLE_BITS, PREDICTABLE,
        "text of other sources",
        f"a small n-gram model of the other sources predicts {{share}} of this one at "
        f"{PREDICTABLE_BITS:g} bits a byte or less, where only copies are",
        "deduplicate across sources: their weights are not what they seem",
    )  # fmt: skip


def _by_bits(
    facts: SourceFacts,
    bits: Sequence[float],
    is_odd: Callable[[float], bool],
    floor: float,
    kind: str,
    sentence: str,
    remedy: str,
) -> Iterator[Finding]:
    usual = statistics.median(bits) if bits else 0.0
    odd = [
        (value, piece) for value, piece in zip(bits, facts.pieces, strict=False) if is_odd(value)
    ]
    share = len(odd) / max(1, len(bits))
    if odd and share >= floor:
        examples = tuple(
            f"{piece.name}: {excerpt(piece.text[:_EXCERPT])} ({value:.2f} bits a byte)"
            for value, piece in sorted(odd, key=lambda one: -abs(one[0] - usual))[:_EXAMPLES]
        )
        shown = sentence.format(share=f"{share:.1%}")
        yield Finding(kind, facts.name, share, shown, remedy, examples)


_JUDGES = (_signs, _copies, _boilerplate, _templates, _dominating, _predictability)


def leakage_finding(source: str, num_held_out: int, leaks: Sequence[Leak]) -> Iterator[Finding]:
    """Whether so many leaks among so many held-out documents are a finding."""
    share = len(leaks) / max(1, num_held_out)
    if len(leaks) >= _FEWEST_LEAKED and share >= LEAKED:
        yield Finding(
            "split leakage", source, share,
            f"{len(leaks):,} ({share:.1%}) of {num_held_out:,} held-out documents are nearly the "
            "same as one that is trained on",
            "remove near copies, across sources too, before the split is made",
            tuple(f"{leak.held_out} ≈ {leak.trained_on}" for leak in leaks[:_EXAMPLES]),
        )  # fmt: skip
