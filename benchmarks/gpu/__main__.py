"""Runs the parts that are missing, each in a process of its own with a limit on its time.

    python -m benchmarks.gpu [PART …] [--tiny] [--peer NANOGPT] [--modded MODDED] [--again]

Figures of all runs are merged into `results/gpu-DEVICE.json` and `.md`. A part that fails leaves a
row with the reason, and the others go on; the next start tries it again.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import RESULTS, ROOT, Bar, missing, print_table
from benchmarks.gpu import report
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setting import LIMIT_S, NotMeasured, Outcome, Setting, end

_TITLES = {name: part.title for name, part in PARTS.items()}
_GRACE_S = 20.0
"""Past its limit, for a part that is about to write down what it has."""


def main() -> None:
    given = arguments()
    if given.child:
        measure(given)
        return
    device = "a CPU, tiny" if given.tiny else gpu()
    if device is None:
        sys.exit("no CUDA device answers here; --tiny runs the same code on small twins on the CPU")
    slug = "tiny-cpu" if given.tiny else re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = given.results / f"gpu-{slug}.json"
    known = report.read(path)
    wanted = given.parts or list(PARTS)
    for name in wanted:
        if name in known and report.is_measured(known[name]) and not given.again:
            print(f"{name}: measured before (--again measures it anew)", flush=True)
            continue
        print(f"\n{name}: {PARTS[name].title}", flush=True)
        facts = {part: found["facts"] for part, found in known.items() if found["facts"]}
        found = run(name, given, facts)
        print_table(name, [Bar(**row) for row in found["bars"]])
        known = report.merged(report.read(path), name, found, list(PARTS))
        report.write(path, device, known, _TITLES)
    print(f"\nwritten to {path} and {path.with_suffix('.md').name}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tiny", action="store_true", help="small twins on the CPU: no figures")
    parser.add_argument("--peer", type=Path, help="folder of nanoGPT")
    parser.add_argument("--modded", type=Path, help="folder of modded-nanogpt")
    parser.add_argument("--again", action="store_true", help="also parts that are measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures are kept")
    parser.add_argument("--prepared", type=Path, default=ROOT / "prepared", help="prepared text")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"{unknown[0]}: no part of that name (there are: {', '.join(PARTS)})")
    for name, file in (("peer", "train.py"), ("modded", "train_gpt.py")):
        folder = getattr(given, name)
        if folder is not None and not (folder / file).is_file():
            parser.error(f"--{name} {folder}: there is no {file} in it")
        setattr(given, name, folder and folder.resolve())
    given.results, given.prepared = given.results.resolve(), given.prepared.resolve()
    return given


def gpu() -> str | None:
    """The first CUDA device's name, asked for by a process that leaves no memory taken on it."""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    ended = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return ended.stdout.strip() or None


def run(name: str, given: argparse.Namespace, facts: dict[str, object]) -> report.Found:
    """A part in its process: what it found, or why it found nothing."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"bench-gpu-{name}-") as folder:
        room = Path(folder)
        (room / "facts.json").write_text(json.dumps(facts))
        command = [sys.executable, "-m", "benchmarks.gpu", name, "--child", str(room)]
        command += ["--prepared", str(given.prepared)]
        command += ["--tiny"] if given.tiny else []
        for peer in ("peer", "modded"):
            if getattr(given, peer) is not None:
                command += [f"--{peer}", str(getattr(given, peer))]
        process = subprocess.Popen(command, cwd=ROOT)
        reason = "it ended without a word"
        try:
            process.wait(LIMIT_S + _GRACE_S)
        except subprocess.TimeoutExpired:
            reason = f"not done after {LIMIT_S:.0f} s"
        finally:
            end(process)
        written = room / "found.json"
        outcome = {"bars": [], "facts": {}, "reason": reason}
        if written.is_file():
            outcome = json.loads(written.read_text())
    bars = [Bar(**row) for row in outcome["bars"]]
    bars = bars or [missing(PARTS[name].title, outcome["reason"])]
    line = f"python -m benchmarks.gpu {name}{' --tiny' if given.tiny else ''}"
    return report.found_by(bars, outcome["facts"], time.monotonic() - began, line, given.tiny)


def measure(given: argparse.Namespace) -> None:
    """The part itself, in the process that was made for it."""
    (name,) = given.parts
    folder: Path = given.child
    (folder / "room").mkdir()
    facts = json.loads((folder / "facts.json").read_text())
    setting = Setting(given.tiny, folder / "room", given.prepared, given.peer, given.modded, facts)
    reason, outcome = "", Outcome([])
    try:
        outcome = PARTS[name].measure(setting)
    except NotMeasured as why:
        reason = str(why)
    except Exception as error:  # noqa: BLE001 (told in the table; the other parts go on)
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    rows: Sequence[object] = [vars(bar) for bar in outcome.bars]
    found = {"bars": rows, "facts": outcome.facts, "reason": reason}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
