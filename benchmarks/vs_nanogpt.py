"""longhaul beside nanoGPT on tiny Shakespeare, with nanoGPT's settings for a CPU.

Two bars: at the same step the loss on the whole validation split must be within 0.02 of
nanoGPT's, and tokens/s at that shape at least 1.3 times its own. nanoGPT computes in float32 on a
CPU and has no other way there; longhaul is measured in float32 and in bf16, and must keep to the
loss in both. The bar on speed is for the faster one.

    python benchmarks/vs_nanogpt.py --peer PATH_OF_NANOGPT --text tinyshakespeare.txt

The peer is run from a copy of its files, as it is; its text is laid out as its own `prepare.py`
would. Steps are timed over whole processes' own clocks: the peer's printed time per iteration,
and longhaul's journalled time between steps, everything a step entails included for both.
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
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from common import at_least, at_most, figure, interleaved, paired_ratio, write_results
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal

SHAPE = {
    "device": "cpu", "compile": "False", "eval_iters": 20, "block_size": 64, "batch_size": 12,
    "n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0,
}  # fmt: skip
TOKENS_PER_STEP = 12 * 64
PRECISIONS = ("float32", "bf16")
_ITERATION = re.compile(r"iter (\d+): loss [\d.]+, time ([\d.]+)ms")


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
        border = int(len(text) * 0.9)
        tokens[:border].tofile(data / "train.bin")
        tokens[border:].tofile(data / "val.bin")
        meta = {
            "vocab_size": len(characters),
            "itos": dict(enumerate(characters)),
            "stoi": number_of,
        }
        (data / "meta.pkl").write_bytes(pickle.dumps(meta))

    def train(self, steps: int, eval_interval: int, log_interval: int) -> tuple[str, float]:
        """Run its train.py; what it printed, and seconds of the whole process."""
        options = SHAPE | {
            "max_iters": steps, "lr_decay_iters": steps, "eval_interval": eval_interval,
            "log_interval": log_interval,
        }  # fmt: skip
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "train.py", "config/train_shakespeare_char.py"]
            + [f"--{key}={value}" for key, value in options.items()],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ended.returncode != 0:
            sys.exit(f"the peer ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        return ended.stdout, time.monotonic() - began

    def tokens_per_second(self, steps: int) -> float:
        printed, _ = self.train(steps, eval_interval=10**9, log_interval=1)
        times = [float(ms) / 1000 for number, ms in _ITERATION.findall(printed) if int(number) > 20]
        return TOKENS_PER_STEP * len(times) / sum(times)

    def loss_at_checkpoint(self) -> tuple[float, int]:
        """Loss on its whole validation split, and the updates its checkpoint has seen."""
        ended = subprocess.run(
            [sys.executable, "-c", _SCORE], cwd=self.folder, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if ended.returncode != 0:
            sys.exit(f"the peer's checkpoint could not be scored:\n{ended.stderr[-2000:]}")
        scored = json.loads(ended.stdout.splitlines()[-1])
        return scored["loss"], scored["step"]


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
print(json.dumps({"loss": total / targets, "step": saved["iter_num"]}))
"""


class Ours:
    """longhaul in a folder of its own; the text is prepared once, as the peer's is."""

    def __init__(self, text: Path, room: Path) -> None:
        self._text = text.resolve()
        self._room = room / "ours"
        self._room.mkdir()
        self._count = 0
        self._call("data", "prepare", "shakespeare-char", "--data", str(self._text))

    def _call(self, *arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "longhaul", *arguments], cwd=self._room,
            capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
        if ended.returncode != 0:
            sys.exit(f"longhaul {' '.join(arguments)} ended with {ended.returncode}:\n"
                     f"{ended.stdout[-2000:]}{ended.stderr[-2000:]}")  # fmt: skip
        return ended.stdout

    def train(self, *options: str) -> tuple[RunFolder, float]:
        """Train a new run; its folder, and seconds of the whole process."""
        self._count += 1
        runs = f"runs-{self._count}"
        began = time.monotonic()
        self._call(
            "train", "shakespeare-char", "--data", str(self._text), "--runs-dir", runs,
            *(word for option in options for word in ("--set", option)),
        )  # fmt: skip
        return RunFolder(self._room / runs / "shakespeare-char"), time.monotonic() - began

    def tokens_per_second(self, steps: int, precision: str) -> float:
        folder, _ = self.train(
            f"train.steps={steps}", "evaluation.interval_steps=0", "checkpoint.interval_steps=0",
            "sample.tokens=0", f"precision.compute={precision}",
        )  # fmt: skip
        times = [r.time for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
        return TOKENS_PER_STEP * (len(times) - 21) / (times[-1] - times[20])

    def loss_at_end(self, folder: RunFolder) -> float:
        finished = [r for r in read_journal(folder, steps=False) if r.KIND == "event"]
        return float(next(r for r in finished if r.kind == "finished").data["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, required=True, help="folder of nanoGPT")
    parser.add_argument("--text", type=Path, required=True, help="tiny Shakespeare")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved rounds of timings")
    parser.add_argument("--timed-steps", type=int, default=300, help="steps of each timing")
    parser.add_argument("--steps", type=int, default=2000, help="steps of the runs compared")
    given = parser.parse_args()
    for path in (given.peer / "train.py", given.text):
        if not path.is_file():
            sys.exit(f"{path}: no such file")
    with tempfile.TemporaryDirectory(prefix="vs-nanogpt-") as name:
        room = Path(name)
        peer, ours = Peer(given.peer, given.text, room), Ours(given.text, room)
        print(f"tokens/s, {given.pairs} interleaved rounds of {given.timed_steps} steps")
        speeds = interleaved(
            given.pairs,
            {
                "nanoGPT": lambda: peer.tokens_per_second(given.timed_steps),
                **{
                    name: partial(ours.tokens_per_second, given.timed_steps, name)
                    for name in PRECISIONS
                },
            },
        )
        results = [figure("tokens/s, nanoGPT (median)", median(speeds["nanoGPT"]), "tokens/s")]
        ratios = {name: paired_ratio(speeds[name], speeds["nanoGPT"]) for name in PRECISIONS}
        fastest = max(PRECISIONS, key=lambda name: ratios[name].mean)
        for name, ratio in ratios.items():
            results += [
                figure(f"tokens/s, {name} (median)", median(speeds[name]), "tokens/s"),
                at_least(f"tokens/s, {name} over nanoGPT's", ratio.mean, "×", 1.3, str(ratio))
                if name == fastest
                else figure(f"tokens/s, {name} over nanoGPT's", ratio.mean, "×", str(ratio)),
            ]
        print(f"training all for {given.steps} steps")
        _, seconds = peer.train(given.steps, eval_interval=250, log_interval=1)
        peer_loss, peer_step = peer.loss_at_checkpoint()
        results += [
            figure("whole process, nanoGPT", seconds, "s"),
            figure("loss, nanoGPT", peer_loss, "nats", f"its checkpoint at step {peer_step}"),
        ]
        for name in PRECISIONS:
            folder, seconds = ours.train(f"train.steps={given.steps}", f"precision.compute={name}")
            loss = ours.loss_at_end(folder)
            results += [
                figure(f"whole process, {name}", seconds, "s"),
                figure(f"loss, {name}", loss, "nats"),
                at_most(f"loss, {name} − nanoGPT's", loss - peer_loss, "nats", 0.02),
            ]
        write_results(
            "vs_nanogpt", results, "make bench-nanogpt PEER=path/to/nanoGPT TEXT=path/to/input.txt"
        )


if __name__ == "__main__":
    main()
