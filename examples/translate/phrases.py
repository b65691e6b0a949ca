"""The phrase table: pairs of one to four words that agree with the links, each with four scores."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from examples.translate.alignment import Links
from examples.translate.text import marks

LONGEST = 4
"""Words of a phrase."""
MOST_OPTIONS = 12
"""Translations kept of a source phrase, by probability."""
Phrase = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A translation of a phrase."""

    words: Phrase
    scores: tuple[float, float, float, float]
    """Natural logarithms of p(target | source), its lexical weight, p(source | target), its lexical
    weight (Koehn, Och & Marcu, NAACL 2003)."""
    count: int


@dataclass(frozen=True, slots=True)
class PhraseTable:
    """Options by source phrase, and how often each source word was seen."""

    options: dict[Phrase, tuple[Option, ...]]
    word_counts: dict[str, int]


def extracted(
    source: Sequence[str], target: Sequence[str], links: Links
) -> Iterator[tuple[int, int, int, int]]:
    """All phrase pairs [begin, end) of a pair that agree with its links: none leads out of them.

    Unlinked target words at an edge make further pairs (Koehn, Och & Marcu, NAACL 2003).
    """
    linked = {t for _, t in links}
    for begin in range(len(source)):
        for end in range(begin + 1, min(begin + LONGEST, len(source)) + 1):
            inside = [t for s, t in links if begin <= s < end]
            if not inside:
                continue
            first, last = min(inside), max(inside)
            if any(first <= t <= last and not begin <= s < end for s, t in links):
                continue
            low = first
            while True:
                high = last
                while high - low < LONGEST:
                    yield begin, end, low, high + 1
                    high += 1
                    if high == len(target) or high in linked:
                        break
                low -= 1
                if low < 0 or low in linked or last - low >= LONGEST:
                    break


def phrase_table(
    sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], links: Sequence[Links]
) -> PhraseTable:
    """Extract and score. A pair with other marks on one side than on the other is left out, so that
    no placeholder is lost or made.
    """
    forward, backward = _lexicon(sources, targets, links)
    counts: Counter[tuple[Phrase, Phrase]] = Counter()
    lexical: dict[tuple[Phrase, Phrase], tuple[float, float]] = {}
    words: Counter[str] = Counter()
    for source, target, own in zip(sources, targets, links, strict=True):
        words.update(source)
        by_place: dict[int, list[int]] = defaultdict(list)
        by_source: dict[int, list[int]] = defaultdict(list)
        for s, t in own:
            by_place[t].append(s)
            by_source[s].append(t)
        for begin, end, low, high in extracted(source, target, own):
            pair = tuple(source[begin:end]), tuple(target[low:high])
            counts[pair] += 1
            if pair not in lexical:
                lexical[pair] = (
                    _weight(source, target, range(low, high), by_place, forward),
                    _weight(target, source, range(begin, end), by_source, backward),
                )
    of_source: Counter[Phrase] = Counter()
    of_target: Counter[Phrase] = Counter()
    for (one, other), count in counts.items():
        of_source[one] += count
        of_target[other] += count
    found: dict[Phrase, list[Option]] = defaultdict(list)
    for (one, other), count in counts.items():
        if marks(" ".join(one)) != marks(" ".join(other)):
            continue
        to_target, to_source = lexical[one, other]
        scores = (
            math.log(count / of_source[one]),
            to_target,
            math.log(count / of_target[other]),
            to_source,
        )
        found[one].append(Option(other, scores, count))
    kept = {
        phrase: tuple(sorted(some, key=lambda o: (-sum(o.scores), o.words))[:MOST_OPTIONS])
        for phrase, some in found.items()
    }
    return PhraseTable(kept, dict(words))


_Lexicon = dict[tuple[str, str], float]


def _lexicon(
    sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], links: Sequence[Links]
) -> tuple[_Lexicon, _Lexicon]:
    """w(target word | source word) and the other way; the empty word stands for no link."""
    both: Counter[tuple[str, str]] = Counter()
    ones: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for source, target, own in zip(sources, targets, links, strict=True):
        pairs = [(source[s], target[t]) for s, t in own]
        rows, columns = {s for s, _ in own}, {t for _, t in own}
        pairs += [(word, "") for s, word in enumerate(source) if s not in rows]
        pairs += [("", word) for t, word in enumerate(target) if t not in columns]
        both.update(pairs)
        ones.update(one for one, _ in pairs)
        others.update(other for _, other in pairs)
    forward = {(one, other): n / ones[one] for (one, other), n in both.items()}
    backward = {(other, one): n / others[other] for (one, other), n in both.items()}
    return forward, backward


def _weight(
    given: Sequence[str],
    made: Sequence[str],
    places: range,
    links: dict[int, list[int]],
    lexicon: _Lexicon,
) -> float:
    """Logarithm of the product over made words of their mean probability over linked words."""
    total = 0.0
    for place in places:
        linked = links.get(place, [])
        if linked:
            mean = sum(lexicon[given[s], made[place]] for s in linked) / len(linked)
        else:
            mean = lexicon.get(("", made[place]), 1e-7)
        total += math.log(max(mean, 1e-7))
    return total
