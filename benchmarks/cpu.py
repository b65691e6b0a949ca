"""All benchmarks of a CPU, one after the other, and one page of what they found.

    python -m benchmarks.cpu [--peer NANOGPT --text TEXT] [--page]

Start-up, reading batches, what monitoring costs, nanoGPT's shape and the race against it, and what
each idea of the speedrun buys. Those that need nanoGPT's checkout or its text are left out without
them. The page `results/cpu.md` shows what `results/` holds now; `--page` only writes it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, Bar, page

TITLES = {
    "quickstart": "The newcomer's run, and start-up",
    "loader": "Reading batches",
    "monitor_cost": "What monitoring costs",
    "save_stall": "What a save costs",
    "vs_nanogpt": "nanoGPT's shape, and the race",
    "race-bf16": "The race in bf16",
    "race-bf16-amx": "The race in bf16, with AMX",
    "race-float32": "The race in float32",
    "ablate": "What each idea of the speedrun buys",
}
"""By name of the benchmark."""
_FILES = {"ablate": "ablate-speedrun-shakespeare"}
"""In results/, where a file is called otherwise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=Path, help="folder of nanoGPT")
    parser.add_argument("--text", type=Path, help="tiny Shakespeare")
    parser.add_argument("--page", action="store_true", help="only the page")
    given = parser.parse_args()
    failed = [] if given.page else run_all(commands(given.peer, given.text))
    (RESULTS / "cpu.md").write_text(as_page(stored()))
    print(f"\nwritten to {(RESULTS / 'cpu.md').relative_to(ROOT)}")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def commands(peer: Path | None, text: Path | None) -> dict[str, list[str]]:
    """Module and arguments of each benchmark that can be run with these."""
    own: dict[str, list[str]] = {"quickstart": [], "loader": [], "monitor_cost": []}
    named = [] if text is None else ["--text", str(text.resolve())]
    if peer is not None and text is not None:
        own["vs_nanogpt"] = ["--peer", str(peer.resolve()), *named]
    if text is not None:
        own["ablate"] = [*named, "--again"]
    return own


def run_all(wanted: Mapping[str, list[str]]) -> list[str]:
    """Run them; the names of those that failed, after which the others go on."""
    left_out = [name for name in ("vs_nanogpt", "ablate") if name not in wanted]
    if left_out:
        print(f"left out: {', '.join(left_out)} (give PEER=path/to/nanoGPT TEXT=path/to/input.txt)")
    failed = []
    for name, arguments in wanted.items():
        print(f"\n=== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    return failed


def stored() -> dict[str, dict[str, Any]]:
    """What results/ holds, by name."""
    paths = {name: RESULTS / f"{_FILES.get(name, name)}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def as_page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a section for each; what was never measured is named."""
    sections = {}
    for name, body in found.items():
        device, versions = body["device"], body["versions"]
        where = (
            f"`{body['command']}`, {body['date'][:10]}, commit {body['commit']}, torch "
            f"{versions['torch']}, {device['cpu']}, {device['usable_cores']} cores"
        )
        sections[TITLES[name]] = (where, [Bar(**row) for row in body["bars"]])
    left = ", ".join(f"`{name}`" for name in TITLES if name not in found)
    said = f"Not measured: {left}." if left else ""
    return page("longhaul on a CPU", "make bench-cpu", sections, said)


if __name__ == "__main__":
    main()
