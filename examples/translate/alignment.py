"""Which words of a pair stand for each other: eflomal where it is installed, else IBM model 2.

Leaves: for each pair its links (place in source, place in target), symmetrised.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Tokens = Sequence[str]
Links = frozenset[tuple[int, int]]
_DIAGONAL = 4.0
"""Sharpness of the prior over places (Dyer, Chahuneau & Smith, NAACL 2013, section 2)."""
_NO_WORD = 0.08
"""Prior probability that a word stands for none, as there."""


def align(sources: Sequence[Tokens], targets: Sequence[Tokens], rounds: int = 5) -> list[Links]:
    """Links of each pair by `grow-diag-final-and` over both directions (Koehn, 2003)."""
    try:
        forward, backward = _by_eflomal(sources, targets)
    except ImportError:
        forward = by_model_2(sources, targets, rounds)
        turned = by_model_2(targets, sources, rounds)
        backward = [frozenset((s, t) for t, s in links) for links in turned]
    return [grown(one, other) for one, other in zip(forward, backward, strict=True)]


def _by_eflomal(
    sources: Sequence[Tokens], targets: Sequence[Tokens]
) -> tuple[list[Links], list[Links]]:
    import eflomal

    with tempfile.TemporaryDirectory() as folder:
        forward, backward = Path(folder) / "forward", Path(folder) / "backward"
        texts = [[" ".join(tokens) + "\n" for tokens in side] for side in (sources, targets)]
        eflomal.Aligner().align(
            *texts, links_filename_fwd=str(forward), links_filename_rev=str(backward), quiet=True
        )
        return _read(forward), _read(backward)


def _read(path: Path) -> list[Links]:
    made = []
    for line in path.read_text().splitlines():
        links = (link.split("-") for link in line.split())
        made.append(frozenset((int(one), int(other)) for one, other in links))
    return made


def by_model_2(sources: Sequence[Tokens], targets: Sequence[Tokens], rounds: int) -> list[Links]:
    """Each target word's best source word, by IBM model 2 with a prior for the diagonal.

    The expectation is computed over all possible links of all pairs at once, as arrays; the prior
    over places is fixed, so that the likelihood has one optimum (Dyer et al., NAACL 2013).
    """
    numbers = [_numbered(side) for side in (sources, targets)]
    pair_L, place_L, from_L, word_L, prior_L = _possible(sources, targets, *numbers)
    entry, entry_L = np.unique(
        from_L.astype(np.int64) * (len(numbers[1]) + 1) + word_L, return_inverse=True
    )
    source_of_entry = entry // (len(numbers[1]) + 1)
    probability = np.ones(len(entry))
    for _ in range(rounds):
        weight_L = probability[entry_L] * prior_L
        weight_L /= np.bincount(pair_L, weight_L)[pair_L]
        counts = np.bincount(entry_L, weight_L, len(entry)) + 1e-6
        probability = counts / np.bincount(source_of_entry, counts)[source_of_entry]
    weight_L = probability[entry_L] * prior_L
    order = np.lexsort((-weight_L, pair_L))
    best = order[np.concatenate([[True], np.diff(pair_L[order]) > 0])] if len(order) else order
    chosen = iter(place_L[best].tolist())
    made = []
    for target in targets:
        links = ((next(chosen), place) for place in range(len(target)))
        made.append(frozenset((one, place) for one, place in links if one >= 0))
    return made


def _numbered(texts: Sequence[Tokens]) -> dict[str, int]:
    """Words by number from 1; 0 is no word."""
    return {word: n for n, word in enumerate(dict.fromkeys(w for t in texts for w in t), 1)}


def _possible(
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    source_number: dict[str, int],
    target_number: dict[str, int],
) -> tuple[npt.NDArray[np.int64], ...]:
    """Of all links: number of the target position, source place (-1: none), words, prior."""
    position, parts = 0, []
    for source, target in zip(sources, targets, strict=True):
        n, m = len(source), len(target)
        froms = np.array([0] + [source_number[word] for word in source])
        words = np.array([target_number[word] for word in target], dtype=np.int64)
        places = np.arange(-1, n)
        distance = np.abs(places[None, 1:] / max(n, 1) - np.arange(m)[:, None] / max(m, 1))
        prior = np.exp(-_DIAGONAL * distance)
        prior = (1 - _NO_WORD) * prior / np.maximum(prior.sum(1, keepdims=True), 1e-9)
        prior = np.concatenate([np.full((m, 1), _NO_WORD), prior], axis=1)
        parts.append((
            np.repeat(np.arange(position, position + m), n + 1),
            np.tile(places, m),
            np.tile(froms, m),
            np.repeat(words, n + 1),
            prior.ravel(),
        ))  # fmt: skip
        position += m
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def grown(forward: Links, backward: Links) -> Links:
    """`grow-diag-final-and`: the links of both, grown into those of either (Koehn, 2003).

    Neighbours, diagonals too, join where one of their words has no link yet; at last those whose
    words both have none.
    """
    union, links = forward | backward, set(forward & backward)
    rows, columns = {s for s, _ in links}, {t for _, t in links}
    waiting = sorted(links)
    while waiting:
        s, t = waiting.pop()
        for near in ((s + a, t + b) for a in (-1, 0, 1) for b in (-1, 0, 1)):
            fresh = near[0] not in rows or near[1] not in columns
            if near in union and near not in links and fresh:
                links.add(near)
                rows.add(near[0])
                columns.add(near[1])
                waiting.append(near)
    for side in (forward, backward):
        for s, t in sorted(side):
            if s not in rows and t not in columns:
                links.add((s, t))
                rows.add(s)
                columns.add(t)
    return frozenset(links)
