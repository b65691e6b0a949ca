"""Other programs on the same device: nanoGPT's loop, modded-nanogpt's script, each as it is but for
how often it evaluates, from a copy of a checkout that the caller names.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.common import Bar, at_least, at_most, figure
from benchmarks.gpu.race import Curve, cut, first_at
from benchmarks.gpu.setting import QUIET, NotMeasured, Outcome, Setting, last_words
from benchmarks.vs_nanogpt import ITERATION

SPEED_BAR = 1.25
_WARM = 20
"""Steps that are not timed."""
_SEQUENCES, _LENGTH, _VOCABULARY = 96, 1024, 50_257
_PEERS_MICRO = (12, 48)
"""nanoGPT's own micro-batch, and a larger one, as ours is the largest that fits."""


def nanogpt(setting: Setting) -> Outcome:
    """Tokens/s of `gpt2-124m` against nanoGPT's loop: same shape, same tokens, both compiled."""
    if setting.peer is None:
        raise NotMeasured("no nanoGPT checkout was given (--peer PATH)")
    folder = setting.copy_of(setting.peer, "nanogpt")
    data = folder / "data" / "random"
    data.mkdir(parents=True)
    numbers = np.random.default_rng(0).integers(_VOCABULARY, size=setting.pick(20_000_000, 50_000))
    for split in ("train", "val"):
        numbers.astype(np.uint16).tofile(data / f"{split}.bin")
    ours = _ours(setting, data / "train.bin")
    theirs = {micro: _theirs(setting, folder, micro) for micro in setting.pick(_PEERS_MICRO, (8,))}
    best = max(theirs.values())
    told = ", ".join(f"{rate:,.0f} at {micro}" for micro, rate in theirs.items())
    return Outcome(
        [
            at_least("tokens/s over nanoGPT's best", ours / best, "×", SPEED_BAR),
            figure("longhaul", ours, "tokens/s", "the largest micro-batch that fits"),
            figure("nanoGPT", best, "tokens/s", f"by sequences at once: {told}"),
        ]
    )


def _steps(setting: Setting) -> int:
    return setting.pick(100, _WARM + 5)  # type: ignore[no-any-return]


def _ours(setting: Setting, tokens: Path) -> float:
    """By the journal's clock, all that a step entails included."""
    from longhaul.core.records import StepRecord
    from longhaul.logbook.reading import read_journal

    source = f'data.sources=[{{name="random", path="{tokens}", format="nanogpt"}}]'
    tokenizer = f'tokenizer={{kind="numbers", vocab_size={_VOCABULARY}}}'
    shape = (f"batch.sequences={_SEQUENCES}", 'batch.micro_sequences="auto"')
    settings = [source, tokenizer, *setting.pick(shape, ())]
    settings += cut(setting.recipe("gpt2-124m", *settings), _steps(setting))
    folder = setting.train("gpt2-124m", *settings, *QUIET, text=False)
    records = [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
    timed = records[_WARM - 1 :]
    return sum(r.tokens for r in timed[1:]) / (timed[-1].time - timed[0].time)


def _theirs(setting: Setting, folder: Path, micro: int) -> float:
    """By its own printed time for each iteration."""
    options: dict[str, object] = {
        "dataset": "random", "device": setting.device.type, "batch_size": micro, "bias": True,
        "gradient_accumulation_steps": max(1, _SEQUENCES // micro), "max_iters": _steps(setting),
        "eval_interval": 10**6, "eval_iters": 1, "log_interval": 1, "out_dir": "out",
    }  # fmt: skip
    if setting.tiny:
        options |= {
            "n_layer": 4, "n_head": 4, "n_embd": 64, "block_size": 64, "compile": False,
            "gradient_accumulation_steps": 1, "dtype": "float32",
        }  # fmt: skip
    command = [
        sys.executable,
        "train.py",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    printed = setting.run(command, folder)
    times = [float(ms) / 1e3 for number, ms in ITERATION.findall(printed) if int(number) > _WARM]
    if not times:
        raise NotMeasured("nanoGPT printed no time of an iteration")
    shape = [options.get("block_size", _LENGTH), micro, options["gradient_accumulation_steps"]]
    return float(np.prod([int(str(n)) for n in shape])) / median(times)


_EVALUATED = re.compile(r"step:(\d+)/\d+ val_loss:([\d.]+) train_time:([\d.]+)ms")
_HEADER, _MAGIC = 256, 20240520
_TRAIN_TOKENS, _HELD_OUT_TOKENS = 100_000_000, 10_485_760
"""Of one of its files, and of its evaluation; the text is repeated until there are so many."""
_SHORTEST = 300
"""Tokens of a document: its script has room for 64 documents in 16,384 tokens, and ends with an
error where there are more."""
_EVALUATES = ("val_loss_every: int = 250", "val_loss_every: int = 50")
"""More often than it does by itself; its clock stands still meanwhile."""


def modded(setting: Setting) -> Outcome:
    """modded-nanogpt's current script on the speedrun's tokens, if it starts here."""
    if setting.modded is None:
        raise NotMeasured("no modded-nanogpt checkout was given (--modded PATH)")
    if "race-speedrun" not in setting.earlier:
        raise NotMeasured("it needs the curve of part race-speedrun, which has none")
    folder = setting.copy_of(setting.modded, "modded")
    held_out = _lay_out(setting, folder / "data" / "fineweb10B")
    script = folder / "train_gpt.py"
    script.write_text(script.read_text().replace(*_EVALUATES))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node=1", "train_gpt.py"]
    log = folder / "printed.txt"
    # It need not come to its end: what it has evaluated until then is compared.
    limited = ["timeout", "-k", "5", str(int(max(1.0, setting.left_s - 60))), *command]
    line = " ".join(limited) + f" > {log.name} 2>&1 || true"
    setting.run(["sh", "-c", line], folder, DATA_PATH=str(folder), PYTHONUNBUFFERED="1")
    printed = log.read_text(errors="replace")
    theirs = [(float(ms) / 1e3, 0, float(loss)) for _, loss, ms in _EVALUATED.findall(printed)]
    theirs = [point for point in theirs if point[0] > 0]
    if not theirs:
        raise NotMeasured(f"its script did not come to an evaluation: {why_not(printed)}")
    bar = against(setting.earlier["race-speedrun"]["curve"], theirs)
    note = (
        f"{bar.note}; losses of the same {held_out:,} held-out tokens: theirs read over and over, "
        "as far back as its windows see, ours in pieces of 1,024"
    )
    return Outcome([replace(bar, note=note)], {"curve": theirs})


def against(ours: Curve, theirs: Curve) -> Bar:
    """Our time to their last loss over theirs; where we end higher, theirs to ours."""
    name, (seconds, _, loss) = "time to the same loss over modded-nanogpt's", theirs[-1]
    reached = first_at(ours, loss)
    if reached is not None:
        note = f"to {loss:.4f}: {reached[0]:.1f} s against {seconds:.1f} s"
        return at_most(name, reached[0] / seconds, "×", 1.0, note)
    earlier = first_at(theirs, ours[-1][2])
    assert earlier is not None  # their last loss is lower than ours
    note = f"to {ours[-1][2]:.4f}: {ours[-1][0]:.1f} s against {earlier[0]:.1f} s"
    return Bar(name, ours[-1][0] / earlier[0], "×", 1.0, ours[-1][0] <= earlier[0], note)


def why_not(printed: str) -> str:
    """The last error that it names, torchrun's own left out, or its last words."""
    pattern = r"^(?:\[rank\d+\]: ?)?(\S*(?:Error|Exception)\b.*)$"
    errors = re.findall(pattern, printed, flags=re.MULTILINE)
    own = [error for error in errors if "ChildFailedError" not in error]
    return own[-1][:200] if own else last_words(printed)


def _lay_out(setting: Setting, folder: Path) -> int:
    """The speedrun's tokens as files of llm.c's kind, end-of-text as GPT-2 numbers it; how many are
    held out.
    """
    dataset = setting.dataset(setting.recipe("speedrun-124m"))
    folder.mkdir(parents=True, exist_ok=True)
    source = dataset.sources[0]
    asked = {"train_000001": (source.train, _TRAIN_TOKENS)}
    asked |= {"val_000000": (source.held_out, _HELD_OUT_TOKENS)}
    for name, (stream, wanted) in asked.items():
        tokens = stream.gather(np.zeros(1, dtype=np.int64), stream.num_tokens)[0]
        tokens = (tokens + _VOCABULARY - 1) % _VOCABULARY  # ours has end-of-text first, not last
        tokens = joined(tokens, _VOCABULARY - 1)
        # With one token less its evaluation looks for another file, which is not there.
        wanted = setting.pick(wanted, 4096) + 2
        header = np.zeros(_HEADER, dtype=np.int32)
        header[:3] = _MAGIC, 1, wanted
        with (folder / f"fineweb_{name}.bin").open("wb") as file:
            file.write(header.tobytes())
            file.write(np.resize(tokens, wanted).astype(np.uint16).tobytes())
    for number in range(2, 10):
        (folder / f"fineweb_train_{number:06}.bin").symlink_to("fineweb_train_000001.bin")
    return source.held_out.num_tokens


def joined(tokens: "np.ndarray[Any, Any]", end: int) -> "np.ndarray[Any, Any]":
    """Documents too short for its script in one with the next."""
    dropped, last = [], -1
    for position in np.flatnonzero(tokens == end):
        if position - last < _SHORTEST:
            dropped.append(position)
        else:
            last = position
    return np.delete(tokens, dropped)
