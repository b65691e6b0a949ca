"""Repetition within a document, by lines, paragraphs and runs of words: Gopher's table A1.

Source: Rae et al. 2021, appendix A.1.1, table A1. A copy is an occurrence after the first; a
character counts once however many copied runs it is in. Shares of words are of characters that are
no white space.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.config.corpus import FilterSection
from longhaul.data.clean.prose import Prose

_Whole: TypeAlias = npt.NDArray[np.int64]
_Hashes: TypeAlias = npt.NDArray[np.uint64]

MOST_COPIED_LINES = 0.3
MOST_COPIED_LINE_CHARACTERS = 0.2
MOST_OF_TOP_RUN = {2: 0.20, 3: 0.18, 4: 0.16}
"""Words in a run → share of characters in the one run that covers most."""
MOST_IN_COPIED_RUNS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Words in a run → share of characters in copies of runs."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class RepeatedLines:
    """Lines and paragraphs that occur again."""

    def reason(self, prose: Prose) -> str | None:
        """Why a text goes; None if it stays."""
        for noun, pieces in (("lines", prose.lines), ("paragraphs", prose.paragraphs)):
            copied, characters = _copied(pieces)
            if copied > MOST_COPIED_LINES * len(pieces):
                return f"repeated_lines: {noun} > {MOST_COPIED_LINES:g}"
            if characters > MOST_COPIED_LINE_CHARACTERS * len(prose.text):
                return f"repeated_lines: characters of {noun} > {MOST_COPIED_LINE_CHARACTERS:g}"
        return None


def _copied(pieces: list[str]) -> tuple[int, int]:
    """Copies, and the characters in them."""
    different = set(pieces)
    in_copies = sum(map(len, pieces)) - sum(map(len, different))
    return len(pieces) - len(different), in_copies


@dataclass(frozen=True, slots=True)
class RepeatedWords:
    """Runs of words that occur again."""

    def reason(self, prose: Prose) -> str | None:
        """Why a text goes; None if it stays."""
        total = int(prose.lengths.sum())
        begins = np.concatenate([[0], np.cumsum(prose.lengths)])
        for length, first, places in _copied_runs(prose):
            if (most := MOST_OF_TOP_RUN.get(length)) is not None:
                if _top_run(length, first, places, begins) > most * total:
                    return f"repeated_words: top run of {length} > {most:g}"
            elif (most := MOST_IN_COPIED_RUNS.get(length)) is not None:
                copies = places[places != first]
                if _covered(length, copies, prose.lengths) > most * total:
                    return f"repeated_words: copied runs of {length} > {most:g}"
        return None


def _copied_runs(prose: Prose) -> Iterator[tuple[int, _Whole, _Whole]]:
    """For each length of run: where the runs that occur more than once begin, and where the first
    of the same run does; both shaped (occurrences,).

    A run that occurs twice begins with a shorter one that does, so that each length looks only
    where the one before found something: all nine cost little more than the first.
    """
    mixed = _mixed(prose.numbers.astype(np.uint64))
    places = np.flatnonzero(np.bincount(prose.numbers)[prose.numbers] > 1)
    hashes = mixed[places]
    for length in range(2, max(MOST_IN_COPIED_RUNS) + 1):
        fits = places + length <= len(mixed)
        places, hashes = places[fits], hashes[fits]
        hashes = hashes * _ODD + mixed[places + length - 1]
        order = np.argsort(hashes)
        if not len(order):
            return
        ordered = hashes[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        sizes = np.diff(np.append(begins, len(ordered)))
        first = np.empty_like(places)
        first[order] = np.repeat(np.minimum.reduceat(places[order], begins), sizes)
        again = np.empty(len(places), bool)
        again[order] = np.repeat(sizes > 1, sizes)
        places, hashes, first = places[again], hashes[again], first[again]
        if not len(places):
            return
        yield length, first, places


def _mixed(numbers: _Hashes) -> _Hashes:
    """Numbers spread over 64 bits (the finaliser of SplitMix64)."""
    mixed = (numbers + np.uint64(1)) * _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _top_run(length: int, first: _Whole, places: _Whole, begins: _Whole) -> int:
    """Characters in all occurrences of the run that has most of them."""
    counts = np.bincount(first)
    runs = np.flatnonzero(counts)
    return int((counts[runs] * (begins[runs + length] - begins[runs])).max())


def _covered(length: int, copies: _Whole, lengths: _Whole) -> int:
    """Characters of the words in any of these runs."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.add.at(edges, copies, 1)
    np.add.at(edges, copies + length, -1)
    return int(lengths[np.cumsum(edges[:-1]) > 0].sum())


def repetition_of(settings: FilterSection) -> Iterator[RepeatedLines | RepeatedWords]:
    """The filters of this kind that a recipe turns on."""

    def is_on(value: bool | None) -> bool:
        return settings.gopher if value is None else value

    if is_on(settings.repeated_lines):
        yield RepeatedLines()
    if is_on(settings.repeated_words):
        yield RepeatedWords()
