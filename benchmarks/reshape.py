"""The reshaping table: a run that goes on under another layout and another number of processes.

    python -m benchmarks.reshape

The drill recipe with dropout off (two sources, an odd vocabulary, a batch that 3 ranks do not
divide) is stopped and started again along chains of layouts, four steps each: real processes, gloo,
one run and its checkpoints. Compared is the loss of every step with that of one process that was
never stopped, and for the same layout every byte of the last checkpoint.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import Bar, at_most, figure, missing, write_results

STEPS = 4
DEADLINE_S = 300.0
BOUND = 1e-5
LAYOUTS: Mapping[str, Mapping[str, int]] = {
    "1": {},
    "dp2": {"replicate": 2},
    "fsdp2": {"shard": 2},
    "fsdp3": {"shard": 3},
    "fsdp4": {"shard": 4},
    "hsdp2x2": {"replicate": 2, "shard": 2},
    "tp2": {"tensor": 2},
    "fsdp2xtp2": {"shard": 2, "tensor": 2},
    "pp2": {"pipeline": 2},
    "interleaved pp2": {"pipeline": 2, "stages_per_rank": 2},
    "offloaded fsdp2": {"shard": 2},
}
CHAINS = (
    ("fsdp4", "fsdp2", "fsdp3", "1"),
    ("1", "tp2", "fsdp2xtp2", "hsdp2x2", "dp2", "1"),
    ("fsdp2", "pp2", "1"),
    ("1", "interleaved pp2", "offloaded fsdp2", "pp2", "interleaved pp2", "1"),
)
RECIPE = (
    "model.dropout=0", "batch.sequences=8", "batch.micro_sequences=2", "batch.stages=[]",
    "optim.schedule.warmup_steps=2", "optim.schedule.decay_steps=24", "checkpoint.interval_steps=0",
    "evaluation.interval_steps=0", "evaluation.tokens=1024",
    "model.layers=4",
)  # fmt: skip


class Failed(Exception):
    """A start that did not end well."""


def train(folder: Path, layout: str, steps: int, *more: str) -> None:
    """Start the run, or go on with it, to so many steps in all."""
    alone = {"replicate": 1, "shard": 1, "tensor": 1, "pipeline": 1, "stages_per_rank": 1}
    ways = alone | dict(LAYOUTS[layout])
    size = ways["replicate"] * ways["shard"] * ways["tensor"] * ways["pipeline"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [*RECIPE, f"train.steps={steps}", *(f"parallel.{k}={v}" for k, v in ways.items())]
    options.append(f"optim.offload={'true' if 'offloaded' in layout else 'false'}")
    command = [sys.executable, "-m", "longhaul", "train", "drill", "--runs-dir", str(folder)]
    command += ["--prepared-dir", str(folder.parent / "prepared")]
    command += [word for option in (*options, *more) for word in ("--set", option)]
    ranks = []
    for rank in range(size):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        environment = os.environ | {name: str(value) for name, value in place.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        ranks.append(process)
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in ranks]
    except subprocess.TimeoutExpired:
        raise Failed(f"{layout}: not done after {DEADLINE_S:g} s") from None
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(process.returncode for process in ranks):
        said = [line for output in outputs for line in output.splitlines() if line.strip()]
        raise Failed(f"{layout}: {said[-1] if said else 'no word'}")


def losses(folder: Path) -> dict[int, float]:
    """By step."""
    from longhaul.core.records import StepRecord
    from longhaul.logbook.folder import RunFolder
    from longhaul.logbook.reading import read_journal

    records = read_journal(RunFolder(folder / "drill"))
    return {record.step: record.loss for record in records if isinstance(record, StepRecord)}


def measure_chain(room: Path, chain: Sequence[str], alone: Mapping[int, float]) -> list[Bar]:
    """A bar for every link: the furthest loss from the single process's."""
    folder = room / "-".join(chain)
    bars = []
    for number, layout in enumerate(chain):
        name = f"{' → '.join(chain[: number + 1])}: losses"
        try:
            train(folder, layout, STEPS * (number + 1))
        except Failed as failure:
            return [*bars, missing(name, str(failure), BOUND)]
        own = {s: loss for s, loss in losses(folder).items() if s > STEPS * number}
        apart = max(abs(loss - alone[step]) / alone[step] for step, loss in own.items())
        bars.append(at_most(name, apart, "relative", BOUND, f"steps {min(own)} to {max(own)}"))
        print(f"  {bars[-1].name}: {apart:.2e}", flush=True)
    return bars


def measure_bits(room: Path, layout: str) -> Bar:
    """Bytes that differ between a run with a stop and one without, dropout and all."""
    name = f"{layout} → {layout}, dropout on: bytes that differ"
    ends = []
    try:
        for folder, stops in ((room / "whole", (2,)), (room / "stopped", (1, 2))):
            for stop in stops:
                train(folder, layout, STEPS * stop, "model.dropout=0.1")
            files = sorted((folder / "drill/checkpoints" / f"step-{STEPS * 2}").glob("*tensors"))
            ends.append(b"".join(path.read_bytes() for path in files))
    except Failed as failure:
        return missing(name, str(failure), 0)
    differ = sum(a != b for a, b in zip(*ends, strict=True))
    return at_most(name, differ, "bytes", 0, f"of {len(ends[0]):,}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chain", default="", help="only chains with this in a layout's name")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longhaul-reshape-") as name:
        room = Path(name)
        longest = max(map(len, CHAINS))
        train(room / "alone", "1", STEPS * longest)
        alone = losses(room / "alone")
        bars = [figure("steps of one process", len(alone), "steps")]
        for chain in (c for c in CHAINS if any(asked.chain in layout for layout in c)):
            bars += measure_chain(room, chain, alone)
        bars.append(measure_bits(room, "fsdp2"))
    write_results("reshape" + "-part" * bool(asked.chain), bars, "python -m benchmarks.reshape")


if __name__ == "__main__":
    main()
