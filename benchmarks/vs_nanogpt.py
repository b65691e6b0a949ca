"""longhaul beside nanoGPT on tiny Shakespeare, with nanoGPT's settings for a CPU.

    python -m benchmarks.vs_nanogpt --peer PATH_OF_NANOGPT --text tinyshakespeare.txt

The shape: with nanoGPT's settings the loss after its 2,000 steps must be within 0.02 of nanoGPT's,
and tokens/s at least 1.3 times its own. nanoGPT computes in float32 on a CPU and has no other way
there; longhaul is measured in float32 and in bf16, and must keep to the loss in both. The bar on
speed is for the faster one. Steps are timed by both programs' own clocks: the peer's printed time
per iteration, and longhaul's journalled time between steps, everything a step entails included.

The race: recipe `speedrun-shakespeare` must reach nanoGPT's loss in a fifteenth of its wall time,
whole process, in no more memory; on a processor that is fastest in float32, without bf16
instructions, in an eighth of it. `--race` measures nothing else. longhaul's time includes
tokenization and its last evaluation; nanoGPT's text is laid out for it before, as its own
`prepare.py` would. Both losses are of the whole validation split; nanoGPT's is measured outside the
clock.

The peer is run from a copy of its files, as it is.
"""

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.common import (
    Bar,
    at_least,
    at_most,
    figure,
    interleaved,
    paired_ratio,
    write_results,
)

from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.segments import read_segments

SHAPE = {
    "device": "cpu", "compile": "False", "eval_iters": 20, "block_size": 64, "batch_size": 12,
    "n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0,
}  # fmt: skip
TOKENS_PER_STEP = 12 * 64
PRECISIONS = ("float32", "bf16")
RACE_BARS = {"bf16": 1 / 15, "float32": 1 / 8}
"""Share of nanoGPT's time, by the format that `precision.compute = "auto"` finds fastest."""
_EVALUATES_EVERY = 250
"""nanoGPT's configuration for this text; so does recipe `shakespeare-char`."""
_TRITON = "Triton is installed, which nanoGPT's optimizer imports: 75 MB more than without"
ITERATION = re.compile(r"iter (\d+): loss [\d.]+, time ([\d.]+)ms")


@dataclass(frozen=True)
class Measured:
    """One training run."""

    tokens_per_s: float
    """At the shape both share; without meaning for other shapes."""
    seconds: float
    """Of the whole process."""
    memory_mb: float
    """Largest resident set."""
    loss: float
    """On the whole validation split."""
    compute: str = "float32"

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.memory_mb:.0f} MB, loss {self.loss:.4f}"


def run_whole(command: list[str], folder: Path) -> tuple[str, float, float]:
    """Run a program to its end; what it printed, its seconds, its largest memory in MB."""
    with tempfile.TemporaryFile("w+") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{printed[-2000:]}")
    return printed, seconds, used.ru_maxrss / 1e3


class Peer:
    """nanoGPT in a folder of its own."""

    def __init__(self, source: Path, text: Path, room: Path) -> None:
        self.folder = room / "peer"
        self.folder.mkdir()
        for name in ("train.py", "model.py", "configurator.py"):
            shutil.copy(source / name, self.folder)
        shutil.copytree(source / "config", self.folder / "config")
        self._lay_out(text.read_text(encoding="utf-8"))

    def _lay_out(self, text: str) -> None:
        data = self.folder / "data" / "shakespeare_char"
        data.mkdir(parents=True)
        characters = sorted(set(text))
        number_of = {character: number for number, character in enumerate(characters)}
        tokens = np.array([number_of[character] for character in text], dtype=np.uint16)
        step_boundary = int(len(text) * 0.9)
        tokens[:step_boundary].tofile(data / "train.bin")
        tokens[step_boundary:].tofile(data / "val.bin")
        meta = {
            "vocab_size": len(characters),
            "itos": dict(enumerate(characters)),
            "stoi": number_of,
        }
        (data / "meta.pkl").write_bytes(pickle.dumps(meta))

    def train(self, steps: int, timed_steps: int) -> Measured:
        """Run its train.py as its configuration says; it saves where its loss is best."""
        options = SHAPE | {"max_iters": steps, "lr_decay_iters": steps, "log_interval": 1}
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py"]
        command += [f"--{key}={value}" for key, value in options.items()]
        printed, seconds, memory_mb = run_whole(command, self.folder)
        times = [
            float(ms) / 1000
            for number, ms in ITERATION.findall(printed)
            # An iteration that evaluates says so by its length; both sides leave those out.
            if 20 < int(number) <= timed_steps and int(number) % _EVALUATES_EVERY
        ]
        rate = TOKENS_PER_STEP * len(times) / sum(times)
        return Measured(rate, seconds, memory_mb, self._loss_at_checkpoint())

    def _loss_at_checkpoint(self) -> float:
        """Loss of its checkpoint on its whole validation split."""
        ended = subprocess.run(
            [sys.executable, "-c", _SCORE], cwd=self.folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if ended.returncode != 0:
            sys.exit(f"the peer's checkpoint could not be scored:\n{ended.stderr[-2000:]}")
        return float(json.loads(ended.stdout.splitlines()[-1])["loss"])


# Runs beside the peer's model.py: windows of 64 one after the other, every token but the first a
# target once, as `longhaul eval` reads a whole split.
_SCORE = """
import json, numpy as np, torch
from model import GPT, GPTConfig
saved = torch.load("out-shakespeare-char/ckpt.pt", map_location="cpu", weights_only=False)
model = GPT(GPTConfig(**saved["model_args"]))
model.load_state_dict(saved["model"])
model.eval()
tokens = torch.from_numpy(
    np.fromfile("data/shakespeare_char/val.bin", dtype=np.uint16).astype(np.int64))
total, targets = 0.0, len(tokens) - 1
with torch.no_grad():
    for begin in range(0, targets, 64):
        x, y = tokens[begin:begin + 64], tokens[begin + 1:begin + 65]
        x = x[:len(y)]
        logits, _ = model(x[None], y[None])
        total += torch.nn.functional.cross_entropy(logits[0].double(), y, reduction="sum").item()
print(json.dumps({"loss": total / targets}))
"""


class Ours:
    """longhaul in a folder of its own."""

    def __init__(self, text: Path, room: Path) -> None:
        self._text = text.resolve()
        self._room = room / "ours"
        self._room.mkdir()
        self._count = 0

    def train(self, recipe: str, *options: str, fresh: bool = False) -> Measured:
        """Train a new run; `fresh` prepares the text anew."""
        self._count += 1
        runs, prepared = f"runs-{self._count}", f"prepared-{self._count if fresh else 0}"
        command = [sys.executable, "-m", "longhaul", "train", recipe, "--data", str(self._text)]
        command += ["--runs-dir", runs, "--prepared-dir", prepared]
        command += [word for option in options for word in ("--set", option)]
        _, seconds, memory_mb = run_whole(command, self._room)
        folder = RunFolder(self._room / runs / recipe)
        times = [r.time for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
        happened = [r for r in read_journal(folder, steps=False) if isinstance(r, Event)]
        loss = float(next(r for r in happened if r.kind == "finished").data["loss"])
        rate = TOKENS_PER_STEP * (len(times) - 21) / (times[-1] - times[20])
        compute = read_segments(folder)[-1].settings["precision"]["compute"]
        return Measured(rate, seconds, memory_mb, loss, compute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, required=True, help="folder of nanoGPT")
    parser.add_argument("--text", type=Path, required=True, help="tiny Shakespeare")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--timed-steps", type=int, default=240, help="steps of each timing")
    parser.add_argument("--steps", type=int, default=2000, help="steps of nanoGPT's recipe")
    parser.add_argument("--race", action="store_true", help="only the race")
    given = parser.parse_args()
    for path in (given.peer / "train.py", given.text):
        if not path.is_file():
            sys.exit(f"{path}: no such file")
    timed = (
        f"train.steps={given.timed_steps}", "evaluation.interval_steps=0",
        "checkpoint.interval_steps=0", "sample.tokens=0", "evaluation.sequences=512",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="vs-nanogpt-") as name:
        room = Path(name)
        peer, ours = Peer(given.peer, given.text, room), Ours(given.text, room)

        def shape(precision: str, *options: str) -> Measured:
            return ours.train("shakespeare-char", f"precision.compute={precision}", *options)

        racers = {
            "nanoGPT": lambda: peer.train(given.steps, given.timed_steps),
            "speedrun": lambda: ours.train("speedrun-shakespeare", fresh=True),
        }
        command = "make bench-nanogpt PEER=path/to/nanoGPT TEXT=path/to/input.txt"
        print(f"{given.pairs} interleaved rounds")
        if given.race:
            write_race(interleaved(given.pairs, racers), f"{command} RACE=--race")
            return
        measured = interleaved(
            given.pairs,
            {
                **racers,
                "float32": lambda: shape("float32", *timed),
                "bf16": lambda: shape("bf16", *timed),
            },
        )
        write_race(measured, command)
        print(f"the same {given.steps} steps")
        same = {name: shape(name, f"train.steps={given.steps}") for name in PRECISIONS}
        write_results("vs_nanogpt", same_shape(measured, same), command)


def write_race(measured: Mapping[str, list[Measured]], command: str) -> None:
    peers, ours = measured["nanoGPT"], measured["speedrun"]
    write_results(f"race-{ours[0].compute}", race(peers, ours), command)


def race(peers: list[Measured], ours: list[Measured]) -> list[Bar]:
    """The speedrun recipe against nanoGPT's whole training."""
    ratio = paired_ratio([m.seconds for m in ours], [m.seconds for m in peers])
    loss = max(m.loss for m in ours) - median(m.loss for m in peers)
    memory = max(m.memory_mb for m in ours) / median(m.memory_mb for m in peers)
    compute = ours[0].compute
    return [
        at_most(
            f"race: wall time over nanoGPT's, in {compute}",
            ratio.mean,
            "×",
            RACE_BARS[compute],
            f"{ratio:.4f}",
        ),
        at_most("race: worst loss − nanoGPT's", loss, "nats", 0.0),
        at_most(
            "race: memory over nanoGPT's",
            memory,
            "×",
            1.0,
            _TRITON * (find_spec("triton") is not None),
        ),
        figure("race: whole process, ours (median)", median(m.seconds for m in ours), "s"),
        figure("race: whole process, nanoGPT (median)", median(m.seconds for m in peers), "s"),
        figure("race: loss, ours (median)", median(m.loss for m in ours), "nats"),
        figure("race: loss, nanoGPT (median)", median(m.loss for m in peers), "nats"),
        figure("race: memory, ours (median)", median(m.memory_mb for m in ours), "MB"),
        figure("race: memory, nanoGPT (median)", median(m.memory_mb for m in peers), "MB"),
    ]


def same_shape(measured: Mapping[str, list[Measured]], same: Mapping[str, Measured]) -> list[Bar]:
    """Both programs with nanoGPT's own settings."""
    speeds = {name: [m.tokens_per_s for m in runs] for name, runs in measured.items()}
    ratios = {name: paired_ratio(speeds[name], speeds["nanoGPT"]) for name in PRECISIONS}
    fastest = max(PRECISIONS, key=lambda name: ratios[name].mean)
    results = [figure("tokens/s, nanoGPT (median)", median(speeds["nanoGPT"]), "tokens/s")]
    for name, ratio in ratios.items():
        title = f"tokens/s, {name} over nanoGPT's"
        results += [
            figure(f"tokens/s, {name} (median)", median(speeds[name]), "tokens/s"),
            at_least(title, ratio.mean, "×", 1.3, str(ratio))
            if name == fastest
            else figure(title, ratio.mean, "×", str(ratio)),
        ]
    peer_loss = median(m.loss for m in measured["nanoGPT"])
    for name, ours in same.items():
        results += [
            figure(f"whole process, {name}", ours.seconds, "s"),
            figure(f"loss, {name}", ours.loss, "nats"),
            at_most(f"loss, {name} − nanoGPT's", ours.loss - peer_loss, "nats", 0.02),
        ]
    return results


if __name__ == "__main__":
    main()
