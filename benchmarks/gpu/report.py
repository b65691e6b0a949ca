"""What all parts found, in one file for each device, and the same as a page of tables.

A figure that is missing has its reason, so that no gap is mistaken for a pass.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, circumstances, page

Found = dict[str, Any]
"""Of one part: `bars`, `facts` that other parts go by, `seconds`, `command`, circumstances."""


def read(path: Path) -> dict[str, Found]:
    """The parts measured on a device so far, by name."""
    return json.loads(path.read_text())["parts"] if path.is_file() else {}


def merged(known: Mapping[str, Found], name: str, found: Found, order: Sequence[str]) -> Any:
    """The parts with what one of them found now, in their order; parts that are no more drop out.

    What was measured before stands in place of a later attempt that measured nothing.
    """
    keeps = name in known and is_measured(known[name]) and not is_measured(found)
    parts = {**known, name: known[name] if keeps else found}
    return {part: parts[part] for part in order if part in parts}


def is_measured(found: Found) -> bool:
    """Whether a part has any figure."""
    return any(bar["value"] is not None for bar in found["bars"])


def found_by(
    bars: Sequence[Bar], facts: Mapping[str, Any], seconds: float, command: str, tiny: bool
) -> Found:
    """As it is kept. What a tiny part measures is held against no bar."""
    kept = [replace(bar, bar=None, met=None) if tiny else bar for bar in bars]
    rows = [asdict(bar) for bar in kept]
    told = {"seconds": round(seconds, 1), "command": command, **circumstances()}
    return {**told, "bars": rows, "facts": dict(facts)}


def write(path: Path, device: str, parts: Mapping[str, Found], titles: Mapping[str, str]) -> None:
    """`PATH.json` and, beside it, the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"benchmark": "gpu", "device": device, "parts": parts}
    path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
    path.with_suffix(".md").write_text(as_page(device, parts, titles))


def as_page(device: str, parts: Mapping[str, Found], titles: Mapping[str, str]) -> str:
    """Markdown: a section for each part, then those that were not run."""
    sections = {}
    for name, found in parts.items():
        where = (
            f"`{name}`, {found['date'][:10]}, commit {found['commit']}, torch "
            f"{found['versions']['torch']}, {found['seconds']:g} s"
        )
        sections[titles[name]] = (where, [Bar(**row) for row in found["bars"]])
    left = ", ".join(f"`{name}`" for name in titles if name not in parts)
    said = f"Not run: {left}." if left else ""
    return page(f"longhaul on {device}", "make bench-gpu", sections, said)
