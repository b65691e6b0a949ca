"""Why one document stays or goes: its cluster, the pairs that made it, and what differs."""

import difflib
import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np

from longhaul.core.errors import UsageError
from longhaul.core.units import count
from longhaul.data.corpus.dedup.components import Pairs
from longhaul.data.corpus.dedup.findings import ELSEWHERE, Findings, Found
from longhaul.data.corpus.dedup.signatures import in_words, jaccard, shingles

_MOST_NAMED = 8
_MOST_DIFFERENT = 24
"""Lines of what differs."""
_COMPARED = 40_000
"""Characters of each text in which differences are looked for; beyond, it would take minutes."""
_LINE = 160


def explain(found: Findings, name: str) -> Iterator[str]:
    """Lines for a person about the documents of this name. UsageError if there is none."""
    numbers = found.numbered(name)
    if not numbers:
        raise UsageError(
            f"{name}: no document of this recipe is called so",
            "names are as `peps.jsonl:17`, and stand in the report and in `longhaul data at`",
        )
    for number in numbers:
        yield from _explain_one(found, number)


def _explain_one(found: Findings, number: int) -> Iterator[str]:
    cluster = found.cluster_of(number)
    if not cluster:
        [own] = found.documents([number]).values()
        yield f"{own.words}: stays; no other document is like it"
        return
    within = found.similar[np.isin(found.similar, np.array(cluster, np.uint64)).all(axis=1)]
    original = found.original(number)
    path = way(within, original, cluster[0])
    shown = [number, original, *path, *cluster[: _MOST_NAMED + 1]]
    known = found.documents(shown)
    own, kept = known[number], known[cluster[0]]
    others = count(len(cluster) - 1, "document")
    if own is kept:
        yield f"{own.words}: stays, in place of {others}"
    else:
        yield f"{own.words}: dropped; {kept.words} stays, in place of {others}"
        if original != number:
            yield f"  it is an exact copy of {known[original].words}"
        yield from _pairs_on(path, known)
    named = [known[n].words for n in cluster[1 : _MOST_NAMED + 1] if n != number]
    if named:
        more = "" if len(cluster) <= _MOST_NAMED + 1 else ", …"
        yield f"  also of this cluster: {', '.join(named)}{more}"
    other = known[cluster[1]] if own is kept else kept
    if other.number != ELSEWHERE:
        yield f"  Jaccard similarity with {other.words}: {_similarity(own, other):.3f}"
        yield from _differences(other, own)


def way(pairs: Pairs, begin: int, end: int) -> list[int]:
    """The shortest chain of similar pairs from one document to another, both of them in it; empty
    if there is none, as from an exact copy.
    """
    beside: dict[int, list[int]] = {}
    for one, other in pairs.tolist():
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    came = {begin: begin}
    waiting = deque([begin])
    while waiting and end not in came:
        at = waiting.popleft()
        for other in sorted(beside.get(at, ())):
            if other not in came:
                came[other] = at
                waiting.append(other)
    if end not in came or begin == end:
        return []
    path = [end]
    while path[-1] != begin:
        path.append(came[path[-1]])
    return path[::-1]


def _pairs_on(path: list[int], known: dict[int, Found]) -> Iterator[str]:
    for one, other in itertools.pairwise(path):
        similarity = _similarity(known[one], known[other])
        yield f"  {known[one].words} is like {known[other].words}: Jaccard {similarity:.3f}"


def _similarity(one: Found, other: Found) -> float:
    return jaccard(shingles(in_words(one.text)), shingles(in_words(other.text)))


def _differences(kept: Found, own: Found) -> Iterator[str]:
    """Lines of one text that the other does not have."""
    before, after = (document.text[:_COMPARED].splitlines() for document in (kept, own))
    lines = difflib.unified_diff(before, after, kept.words, own.words, lineterm="", n=0)
    shown = [line for line in lines if not line.startswith("@@")]
    if not shown:
        yield "  the texts do not differ"
    for line in shown[:_MOST_DIFFERENT]:
        yield f"    {line if len(line) <= _LINE else line[: _LINE - 1] + '…'}"
    if len(shown) > _MOST_DIFFERENT:
        yield f"    … and {count(len(shown) - _MOST_DIFFERENT, 'further line')}"
