"""The part `Nodes and ranks` of a page as HTML; every text is escaped here. What is well is
counted, what is not is listed.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TypeVar

from longhaul.board import page
from longhaul.board.node_health import NodeHealth, counted
from longhaul.board.nodes import Failing, NodesAndRanks, RankVerdict, ReplicaLosses
from longhaul.core.units import count, moment, sentence, short_seconds

_MOST_NAMED = 8
"""Nodes that are named although they are well."""
_MOST_ROWS = 60
_MOST_VERDICTS = 10
"""The last ones: a straggler is told again and again."""
_TONES = {"cordoned": "alarm", "refused": "alarm", "absent": "alarm", "corrupt": "alarm"}
_LONGEST = 300
"""Characters of a reason; the journal has the whole of it."""

Item = TypeVar("Item")
Cell = tuple[str, str]
"""What it says, and more of it below."""


def node_section(found: NodesAndRanks | None, *, live: bool) -> str:
    """The whole part; empty where a run is one process."""
    if found is None:
        return ""
    parts = [f"<p class='note'>{escape(text)}</p>" for text in _in_words(found, live=live)]
    parts += [
        _table("unwell", ("node", "health", "why"), found.unwell, _node),
        _table("replicas", ("replica", "lost", "the last time"), found.replicas, _replica),
        _table("failing", ("rank", "attempts it ended", "causes"), found.failing, _failing),
        _table("verdicts", ("rank", "verdict", "why"), found.verdicts[::-1], _verdict,
               _MOST_VERDICTS),
    ]  # fmt: skip
    return page.section("nodes", "Nodes and ranks", "\n".join(filter(None, parts)))


def _in_words(found: NodesAndRanks, *, live: bool) -> Iterable[str]:
    """Who trains, who is well, what was compared."""
    does = "trains" if live else "trained last,"
    layout = f" ({found.layout})" if found.layout else ""
    ranks = f"{count(found.ranks, 'rank')} on {count(len(found.nodes), 'node')}{layout}"
    text = f"Attempt {found.attempt} {does} with {ranks}"
    if len(found.nodes) <= _MOST_NAMED:
        named = (f"{name} with {_ranks(ranks)}" for name, ranks in found.nodes)
        text += f": {'; '.join(named)}"
    yield f"{text}."
    if found.awaited:
        yield f"There are too few nodes to go on with, and it waits: {found.awaited}"
    troubled = {each.name for each in found.unwell if each.ranks}
    if len(found.nodes) > 1 or found.unwell:
        well = len(found.nodes) - len(troubled)
        spares = f"; {count(found.spares, 'spare')} at hand" if found.spares else ""
        yield f"Nothing is known against {well:,} of {count(len(found.nodes), 'node')}{spares}."
    if found.unread:
        yield found.unread
    if found.compared:
        yield found.compared
    if not (found.verdicts or found.failing or found.replicas):
        yield "No rank was found slow or wrong, and none has ended an attempt."


def _table(
    name: str,
    titles: Sequence[str],
    items: Sequence[Item],
    row: Callable[[Item], tuple[str, Sequence[Cell]]],
    most: int = _MOST_ROWS,
) -> str:
    if not items:
        return ""
    rows = "".join(
        f"<tr class='{tone}'>{''.join(map(_cell, cells))}</tr>"
        for tone, cells in map(row, items[:most])
    )
    more = len(items) - most
    rest = f"<p class='quiet'>And {more:,} more.</p>" if more > 0 else ""
    return page.table(f"nodes-table {name}", titles, rows) + rest


def _cell(cell: Cell) -> str:
    text, more = cell
    below = f"<p class='quiet'>{escape(more)}</p>" if more else ""
    return f"<td>{escape(text)}{below}</td>"


def _node(node: NodeHealth) -> tuple[str, Sequence[Cell]]:
    since = f"since {moment(node.since)}" if node.since is not None else ""
    until = f"{node.until} {moment(node.until_time)}" if node.until_time else node.until
    ranks = _ranks(node.ranks) if node.ranks else ""
    why = sentence(node.why[:_LONGEST])
    return _tone(node.health), ((node.name, ranks), (node.health, since), (why, until))


def _replica(one: ReplicaLosses) -> tuple[str, Sequence[Cell]]:
    back = ""
    if one.back_step is not None:
        after = "" if one.away_s is None else f" after {short_seconds(one.away_s)}"
        back = f"back at step {one.back_step:,}{after}"
    now = "it is away" if one.away else ""
    times = (count(one.times, "time"), f"last at step {one.last_step:,}")
    last = (sentence(one.reason[:_LONGEST]), back)
    return "alarm" if one.away else "", ((str(one.replica), now), times, last)


def _failing(one: Failing) -> tuple[str, Sequence[Cell]]:
    where = f"on {one.node}" if one.node else ""
    times = (f"{one.times:,}", f"last at step {one.last_step:,}")
    return "", ((_ranks([one.rank]), where), times, (counted(one.causes)[:_LONGEST], ""))


def _verdict(verdict: RankVerdict) -> tuple[str, Sequence[Cell]]:
    sound = f"step {verdict.sound_step:,} was sound" if verdict.sound_step is not None else ""
    nodes = f"on {', '.join(verdict.nodes[:_MOST_NAMED])}" if verdict.nodes else ""
    when = f"at step {verdict.step:,} of attempt {verdict.attempt}"
    why = (sentence(verdict.reason[:_LONGEST]), sound)
    return _tone(verdict.kind), ((_ranks(verdict.ranks), nodes), (verdict.kind, when), why)


def _tone(word: str) -> str:
    return _TONES.get(word, "warning")


def _ranks(ranks: Sequence[int]) -> str:
    """`ranks 0–7, 9`; nobody's are a dash."""
    if not ranks:
        return "–"
    if isinstance(ranks, range):
        spans = [(ranks[0], ranks[-1])]
    else:
        spans = []
        for rank in sorted(set(ranks)):
            if spans and rank == spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], rank)
            else:
                spans.append((rank, rank))
    shown = [f"{first}" if first == last else f"{first}–{last}" for first, last in spans]
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(shown[:_MOST_NAMED])}{more}"
