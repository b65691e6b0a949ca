"""A run as a tree of segments: stretches under one set of settings, software and nodes.

Numbers are `major.minor` and sort as integers: 1.00, 1.01, …; a fork opens the next major. A number
is claimed by creating its folder, and the segment exists once its `settings.json` does: a crash in
between leaves an empty folder that readers pass over.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from longhaul.config.load import with_values
from longhaul.core.addresses import sealed_values
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.files import fsync_folder, write_bytes, write_json
from longhaul.core.machine import differences
from longhaul.core.records import Moment, Whole
from longhaul.core.strict import entries_of, read_object
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.ledger import LedgerState, Override

_NUMBER = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII)


@dataclass(frozen=True, order=True)
class SegmentNumber:
    """`12.41` is the forty-second stretch of the twelfth line of descent."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02d}"

    @classmethod
    def parse(cls, text: str) -> "SegmentNumber":
        """The number in `text`; UsageError if it is none."""
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UsageError(f"segment {text}: not a segment's number", "write it like 1.02")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, kw_only=True)
class SegmentOpening:
    """Everything a segment starts from and with, as kept in its `settings.json`."""

    number: SegmentNumber
    parent: SegmentNumber | None = None
    """The segment it continues; None for the first."""
    attempt: Whole
    checkpoint: Whole | None = None
    """Step of the checkpoint it was restored from; None when it begins with fresh weights."""
    step: Whole
    """Updates made before it."""
    draw: Whole
    """First block of the order of data that it reads."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """What it began with where the recipe gives weights (`init.from`): their folder, family and
    hash; empty when it continues a segment or began with random ones."""
    reason: str
    difference: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Dotted path → (in the parent, here) of every setting that differs."""
    settings: Mapping[str, Any]
    """The effective recipe, as nested tables."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Software, machine, environment, torch flags and data (`core.machine`)."""
    nodes: tuple[str, ...] = ()
    opened: Moment
    file: str = field(default="", compare=False)
    """Where it was read; for messages."""


_OPENING = TypeAdapter(SegmentOpening)


class SegmentTaken(LonghaulError):
    """The number is another segment's."""


def open_segment(folder: RunFolder, opening: SegmentOpening, source_difference: str = "") -> None:
    """Claim the segment's number (`next_minor`, `next_major`) and write what it starts from;
    SegmentTaken if the number's folder exists. `source.diff` keeps how the source differs from the
    commit in the fingerprint.
    """
    segment = folder.segments / str(opening.number)
    try:
        segment.mkdir()
    except FileExistsError as error:
        raise SegmentTaken(f"segment {opening.number} of run {folder.name} exists") from error
    fsync_folder(folder.segments)
    if source_difference:
        write_bytes(segment / "source.diff", source_difference.encode("utf-8", "replace"))
    body = {item.name: getattr(opening, item.name) for item in fields(opening)}
    del body["file"]
    body["number"], body["parent"] = str(opening.number), opening.parent and str(opening.parent)
    write_json(segment / "settings.json", {"format": FORMAT} | body)


def read_segments(folder: RunFolder) -> tuple[SegmentOpening, ...]:
    """Every segment that was opened completely, by number."""
    openings = (_read(folder, number) for number in _claimed(folder))
    return tuple(opening for opening in openings if opening is not None)


def by_opening(openings: Sequence[SegmentOpening]) -> tuple[SegmentOpening, ...]:
    """Segments in the order in which they were opened: the last one's settings are in force."""
    return tuple(sorted(openings, key=lambda opening: (opening.attempt, opening.opened)))


def find_segment(folder: RunFolder, text: str) -> SegmentOpening:
    """The segment with the number in `text`; UsageError names those that there are."""
    number = SegmentNumber.parse(text)
    openings = read_segments(folder)
    for opening in openings:
        if opening.number == number:
            return opening
    names = [str(opening.number) for opening in openings]
    shown = ", ".join(names if len(names) <= 12 else [*names[:3], "…", *names[-8:]])
    raise UsageError(
        f"segment {number}: not in run {folder.name}",
        f"its segments: {shown}" if names else "it has no segments yet",
    )


def next_minor(folder: RunFolder, parent: SegmentNumber) -> SegmentNumber:
    """The next free number in `parent`'s line of descent."""
    taken = [number.minor for number in _claimed(folder) if number.major == parent.major]
    return SegmentNumber(parent.major, max([parent.minor, *taken]) + 1)


def next_major(folder: RunFolder) -> SegmentNumber:
    """The first number of a new line of descent; 1.00 in a new run."""
    return SegmentNumber(max((number.major for number in _claimed(folder)), default=0) + 1, 0)


def _claimed(folder: RunFolder) -> list[SegmentNumber]:
    return sorted(
        number
        for name in entries_of(folder.segments)
        if _NUMBER.fullmatch(name) and str(number := SegmentNumber.parse(name)) == name
    )


def _read(folder: RunFolder, number: SegmentNumber) -> SegmentOpening | None:
    path = folder.segments / str(number) / "settings.json"
    try:
        body = read_object(path)
        parent = body.get("parent")
        # Runs of older versions keep addresses as they were given.
        body |= {
            "number": number,
            "parent": SegmentNumber.parse(parent) if parent else None,
            "settings": sealed_values(body["settings"]),
            "difference": sealed_values(body.get("difference", {})),
            "file": str(path),
        }
        return _OPENING.validate_python(body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError):
        return None


SECTIONS = ("settings", "software", "machine", "environment", "torch", "data", "nodes")
"""What a comparison covers, in order; all but settings and nodes are parts of the fingerprint."""


def segment_differences(
    old: SegmentOpening, new: SegmentOpening
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Section → dotted path → (old, new), for every section that both segments know of."""
    before, after = _sections(old), _sections(new)
    return {
        section: differences(before.get(section, {}), after.get(section, {}))
        for section in (*SECTIONS, *sorted((before.keys() | after.keys()) - {*SECTIONS}))
        if section in before or section in after
    }


def drift_from_recipe(
    recipe: Mapping[str, Any], segments: Sequence[SegmentOpening], ledger: LedgerState, step: int
) -> dict[str, tuple[Any, Any, str]]:
    """Dotted path → (recipe's value, value in force after `step` updates, why) where they differ.

    In force are those of the last of the `segments`, of which there is one at least, with the
    ledger's overrides on top; `recipe` is as nested tables, defaults included.
    """
    now = with_values(segments[-1].settings, ledger.overrides_at(step))
    return {
        path: (wanted, value, _why(path, value, segments, ledger.override_at(path, step)))
        for path, (wanted, value) in differences(recipe, now).items()
    }


def scheduled(ledger: LedgerState, step: int) -> list[tuple[str, Override]]:
    """Overrides that will come into force after `step` updates, by path and step."""
    return [
        (path, override)
        for path, overrides in sorted(ledger.overrides.items())
        for override in overrides
        if override.from_step > step
    ]


def _why(
    path: str, value: Any, segments: Sequence[SegmentOpening], override: Override | None
) -> str:
    if override is not None and override.value == value:
        return f"set by {override.who} at step {override.step:,}: {override.reason or 'no reason'}"
    for segment in reversed(segments):
        if path in segment.difference:
            return f"since segment {segment.number}: {segment.reason}"
    return "the recipe was changed after the last start"


def _sections(segment: SegmentOpening) -> dict[str, Mapping[str, Any]]:
    parts = {
        name: part if isinstance(part, Mapping) else {name: part}
        for name, part in segment.fingerprint.items()
    }
    return {"settings": segment.settings, **parts, "nodes": {"nodes": list(segment.nodes)}}
