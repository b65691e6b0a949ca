"""Discussions: from a tree of comments to its longest chain.

OPT (Zhang et al. 2022, section 2.3) took Reddit so: the longest chain of comments of each thread,
and no other path, which left a third of the text. A record is one comment, as in Pushshift's dumps,
or a whole thread with its comments in a list; replies may nest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from longhaul.core.errors import DataError
from longhaul.core.units import short_bytes
from longhaul.data.adapters.records import (
    MOST_HELD,
    Adapted,
    Fields,
    Record,
    first_of,
    in_buckets,
    number_of,
    text_of,
)
from longhaul.data.documents import Document
from longhaul.data.removed import Removed

_TEXTS = ("body", "text", "selftext", "comment", "content")
_LISTS = ("comments", "replies", "children", "messages", "posts")
_IDS = ("id", "comment_id", "message_id", "post_id")
_PARENTS = ("parent_id", "parent", "in_reply_to", "reply_to")
_THREADS = ("link_id", "thread_id", "thread", "root", "root_id")
_SCORES = ("score", "ups", "points", "likes")
_GONE = frozenset({"", "[deleted]", "[removed]"})
OFF_CHAIN = "discussion: not on the longest chain"
IN_CIRCLE = "discussion: its parents go round in a circle"


@dataclass(frozen=True, slots=True)
class _Comment:
    name: str
    text: str
    score: float
    ident: str
    parent: str
    """Empty if it begins a discussion."""


def adapt_discussions(records: Iterator[Record], removed: Removed) -> Iterator[Adapted]:
    """One document for each thread; comments are parted by an empty line."""
    for bucket in in_buckets(records, _thread_of):
        comments = [comment for record in bucket for comment in _comments_of(record)]
        for tree in _trees(comments, removed):
            path = _longest_chain(tree)
            for place, (comment, _) in enumerate(tree):
                if place not in path and comment.text:
                    removed.drop(OFF_CHAIN, comment.name, comment.text)
            if any(tree[place][0].text for place in path):
                before = "\n\n".join(comment.text for comment, _ in tree if comment.text)
                texts = (tree[place][0].text for place in sorted(path))
                text = "\n\n".join(text for text in texts if text)
                yield Adapted(before, Document(text, tree[0][0].name))


def _plain_id(value: Any) -> str:
    """Reddit writes `t1_` before a comment's identity where it is a parent, `t3_` before a post's.

    The letters go where there are any, so that a child finds its parent.
    """
    text = "" if value is None else str(value)
    is_typed = len(text) > 3 and text[0] == "t" and text[1].isdigit() and text[2] == "_"
    return text[3:] if is_typed else text


def _thread_of(record: Record) -> str:
    """What keeps a thread together where there are too many comments for memory; its first post,
    which names none, is the thread itself.
    """
    if any(isinstance(record.fields.get(name), list) for name in _LISTS):
        return record.name
    thread = _plain_id(record.first(*_THREADS))
    if not thread and record.first(*_PARENTS) is not None:
        raise DataError(
            f"{record.name}: a comment that names its parent and no thread, in a file of more than "
            f"{short_bytes(MOST_HELD)} of text",
            f"give comments a field of {', '.join(_THREADS)}, or cut the file between threads",
        )
    return thread or _plain_id(record.first(*_IDS))


def _comments_of(record: Record) -> Iterator[_Comment]:
    """The record itself and, depth first, those that are listed in it."""
    waiting: list[tuple[Fields, str, str]] = [(record.fields, record.name, "")]
    while waiting:
        fields, name, above = waiting.pop()
        ident = _plain_id(first_of(fields, *_IDS)) or name
        parent = _plain_id(first_of(fields, *_PARENTS)) or above
        text = text_of(fields, record.text_field, *_TEXTS)
        title = fields.get("title")
        parts = [title.strip() if isinstance(title, str) else "", "" if text in _GONE else text]
        score = number_of(first_of(fields, *_SCORES))
        whole = "\n\n".join(part for part in parts if part)
        yield _Comment(name, whole, score, ident, "" if parent == ident else parent)
        listed = [value for key in _LISTS if isinstance(value := fields.get(key), list)]
        for number, child in reversed(list(enumerate(chain.from_iterable(listed), 1))):
            if isinstance(child, dict):
                waiting.append((child, f"{name}/{number}", ident))


_Tree: TypeAlias = list[tuple[_Comment, int]]
"""Comments of one discussion, each behind its parent, and where the parent is; -1: none is."""


def _trees(comments: list[_Comment], removed: Removed) -> Iterator[_Tree]:
    """Comments by the discussion they are in, in the order of its first.

    Those whose parent is not there, as a post that another file holds, are one discussion with
    others of the same parent. Of several with one identity the first has the replies.
    """
    known: dict[str, _Comment] = {}
    children: dict[str, list[_Comment]] = {}
    roots: dict[tuple[str, str], list[_Comment]] = {}
    for comment in comments:
        known.setdefault(comment.ident, comment)
        children.setdefault(comment.parent, []).append(comment)
    for comment in comments:
        if comment.parent not in known:
            alone = "" if comment.parent else comment.name
            roots.setdefault((comment.parent, alone), []).append(comment)
    reached: set[int] = set()
    for beginners in roots.values():
        tree = [(comment, -1) for comment in beginners]
        for place, (comment, _) in enumerate(tree):  # grows while it is walked
            reached.add(id(comment))
            if known[comment.ident] is comment:
                tree += [(child, place) for child in children.get(comment.ident, [])]
        yield tree
    for comment in comments:
        if id(comment) not in reached:
            removed.drop(IN_CIRCLE, comment.name, comment.text)


def _longest_chain(tree: _Tree) -> set[int]:
    """Places of the path with most comments that have text; of several, of that with the highest
    scores, then of the first.
    """
    best: list[tuple[int, float]] = []
    for comment, above in tree:
        count, score = best[above] if above >= 0 else (0, 0.0)
        best.append((count + bool(comment.text), score + comment.score))
    place = best.index(max(best))
    path = set()
    while place >= 0:
        path.add(place)
        place = tree[place][1]
    return path
