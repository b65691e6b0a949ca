"""Making ends, each once, and keeping them.

Enters: cases. Leaves: all forms of each, from a cache where they are there already. Never knows:
what is a good end.

An end's file is named by all that decides it: the case, the form, and, where the policy acts, the
sources of longhaul. So a broken-off generation goes on, and a new policy trains only its own form
again. Where nobody acts the end is one of training alone, and is kept whatever the version.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.divergence_lab.ends.cases import Case
from benchmarks.divergence_lab.ends.drive import FORMS, Action, Ended, Form, text_of, train

import longhaul

_NICENESS = 5
Ends = dict[str, dict[Form, Ended]]
"""Case → form → its end."""


def forms_of(case: Case) -> tuple[Form, ...]:
    """A healthy run is trained with the policy alone: what counts is whether it acts."""
    return ("policy",) if case.way == "healthy" else FORMS


@cache
def _hash_of_sources() -> str:
    root = Path(longhaul.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _path(case: Case, form: Form, home: Path) -> Path:
    made = case.undisturbed() if form == "undisturbed" else case
    sources = f"-{_hash_of_sources()}" if form == "policy" else ""
    return home / "made" / f"{made.key()}-{form}{sources}.json"


def _make(case: Case, form: Form, home: Path) -> Ended:
    path = _path(case, form, home)
    if path.exists():
        return replace(from_json(json.loads(path.read_text())), name=case.run.name)
    ended = train(case, form, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(as_json(ended)))
    unfinished.replace(path)
    return ended


def make_all(
    cases: Iterable[Case], home: Path, processes: int, forms: Collection[str] = FORMS
) -> Iterator[Ended]:
    """All forms of all cases, or only some, in any order of completion."""
    wanted = [(case, form) for case in cases for form in forms_of(case) if form in forms]
    for case, _ in wanted:
        text_of(case, home)  # made before several processes want it
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_be_nice) as pool:
        for done in as_completed([pool.submit(_make, *one, home) for one in wanted]):
            yield done.result()


def _be_nice() -> None:
    os.nice(max(0, _NICENESS - os.nice(0)))


def together(ends: Iterable[Ended]) -> Ends:
    """Ends by case and form, in the order of cases."""
    found: Ends = {}
    for ended in ends:
        found.setdefault(ended.name, {})[ended.form] = ended
    return {name: found[name] for name in sorted(found)}


def as_json(ended: Ended) -> dict[str, Any]:
    """As it is kept."""
    return asdict(ended)


def from_json(body: Mapping[str, Any]) -> Ended:
    """As `as_json` left it."""
    actions = tuple(Action(**{**a, "actions": tuple(a["actions"])}) for a in body["actions"])
    alarms = tuple((step, kind) for step, kind in body["alarms"])
    return Ended(**{**body, "actions": actions, "alarms": alarms, "curve": tuple(body["curve"])})


def store(path: Path, ends: Ends) -> None:
    """Keep ends in the repository, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(as_json(end), separators=(",", ":")) for forms in ends.values()
             for end in forms.values())  # fmt: skip
    path.write_text("\n".join(lines) + "\n")


def stored(path: Path) -> Ends:
    """Ends that are kept in the repository."""
    return together(from_json(json.loads(line)) for line in path.read_text().splitlines())


def part_of(ends: Ends, names: Sequence[str]) -> Ends:
    """Only these cases, those that are there."""
    return {name: ends[name] for name in names if name in ends}
