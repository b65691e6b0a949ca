"""`longhaul drill resume`: a run killed at random moments against the same run left alone.

Enters: how often to kill, a seed. Leaves: a verdict, byte by byte, and its story line by line.
Never knows: torch; the runs are processes and the states are files.
"""

import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from longhaul.core.clocks import RealClock, time_spent
from longhaul.core.errors import NeedsPerson
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.core.units import Seconds, short_bytes
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import new_request, submit
from longhaul.logbook.run_spec import ask, write_asked
from longhaul.store.catalogue import catalogue
from longhaul.supervise.faults.moments import random_moments, wait_for
from longhaul.supervise.ranks.process import Worker

Say = Callable[[str], None]
_LONGEST_RUN_S: Seconds = 600.0
_RECIPE = "drill"


def drill_resume(
    kills: int, seed: int, options: tuple[str, ...], keep: Path | None, say: Say
) -> bool:
    """Run the drill; True if the killed run ended in the very bytes of the undisturbed one."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return _drill(kills, seed, options, keep, say)
    with tempfile.TemporaryDirectory(prefix="longhaul-drill-") as room:
        return _drill(kills, seed, options, Path(room), say)


def _drill(kills: int, seed: int, options: tuple[str, ...], room: Path, say: Say) -> bool:
    began = time.monotonic()
    reference = set_up(room, "undisturbed", options)
    seconds = finish(reference)
    steps = max(record.step for record in _steps(reference))
    spent = time_spent(read_journal(reference))
    start_up_s = spent.get("start-up", 0.0) + spent.get("prepare", 0.0)
    say(f"undisturbed: {steps} steps in {seconds:.1f} s")
    killed = set_up(room, "killed", options)
    struck = 0
    for number, moment in enumerate(random_moments(kills, steps, start_up_s, seed), start=1):
        worker = Worker(killed)
        come = wait_for(moment, killed, worker, _LONGEST_RUN_S)
        worker.kill()
        struck += come
        reached = max((record.step for record in _steps(killed)), default=0)
        what = f"in {moment.phase}" if come else f"meant for {moment.phase}, which did not come"
        say(f"kill {number:>3}: {what}, {moment.delay_s * 1000:.0f} ms in; step {reached} reached")
    finish(killed)
    verdict = compare(reference, killed, say)
    attempts = sum(isinstance(r, Event) and r.kind == "attempt-started" for r in _all(killed))
    say(
        f"{struck} of {kills} kills struck, {attempts} attempts got as far as training, "
        f"{time.monotonic() - began:.0f} s: {'PASSED' if verdict else 'FAILED'}"
    )
    return verdict and struck == kills


def set_up(room: Path, name: str, options: tuple[str, ...]) -> RunFolder:
    """A run that has not begun, with a skip and an override waiting to be decided."""
    clock = RealClock()
    folder = create_run(room / name, clock)
    asked = ask(_RECIPE, options, None, room / "prepared")
    write_asked(folder, asked)
    recipe = asked.settings()
    steps = recipe.total_steps() or 0
    blocks = recipe.batch_at(0).sequences * recipe.batch_at(0).sequence_length
    per_step = blocks // recipe.block_length()
    chance = random.Random(recipe.seed)
    begin = (steps // 4 + chance.randrange(10)) * per_step + 1
    lower = {"path": "optim.lr", "value": recipe.optim.lr / 2, "from_step": steps // 3}
    for kind, data in (("set", lower), ("skip", {"begin": begin, "end": begin + 37})):
        submit(folder, new_request(kind, data, who="drill", reason="drill", clock=clock))
    return folder


def finish(folder: RunFolder, module: str = "longhaul") -> Seconds:
    """Let the run end by itself, by one worker; seconds it took.

    Args:
        folder: of the run.
        module: the command line that the worker is started with.

    Raises:
        NeedsPerson: it did not end well.
    """
    began = time.monotonic()
    worker = Worker(folder, module=module)
    code = worker.wait(_LONGEST_RUN_S)
    if code != 0:
        raise NeedsPerson(
            f"run {folder.name} of the drill ended with exit code {code}",
            f"the end of {worker.log}:\n{worker.log.read_text(errors='replace')[-2000:]}",
        )
    return time.monotonic() - began


def compare(reference: RunFolder, killed: RunFolder, say: Say) -> bool:
    """Whether two runs ended in the same bytes and had the same losses on their way there."""
    found = differences(reference, killed)
    for name in found.pieces[:10]:
        say(f"  differs: {name}")
    if found.steps:
        say(f"  steps whose loss or draw differs: {found.steps[:10]}")
    size = sum(checkpoint.size_bytes for checkpoint in catalogue(killed.checkpoints)[-1:])
    for folder in (reference, killed):
        granted = {r.kind for r in read_journal(folder, steps=False) if isinstance(r, Decision)}
        if not {"set", "skip"} <= granted:
            say(f"  {folder.name}: the override or the skip was not granted, so nothing is proven")
            return False
    differ = f"{len(found.pieces)} and {len(found.steps)} differ"
    say(
        f"{found.compared_pieces} pieces of state ({short_bytes(size)}) and "
        f"{found.compared_steps} losses compared: {'byte-identical' if found.none else differ}"
    )
    return found.none


@dataclass(frozen=True, slots=True)
class Differences:
    """Between how two runs ended."""

    pieces: list[str]
    """Of the last state, that are not the same bytes."""
    steps: list[int]
    """With another loss or draw."""
    compared_pieces: int
    compared_steps: int

    @property
    def none(self) -> bool:
        """Every byte and every loss is the same."""
        return not self.pieces and not self.steps


def differences(reference: RunFolder, other: RunFolder, kept_only: bool = False) -> Differences:
    """What differs between a run left alone and another one.

    Args:
        reference: left alone.
        other: another one.
        kept_only: leave out steps that were made again later.
    """
    expected, found = final_state(reference), final_state(other)
    wrong = sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )
    losses = {record.step: (record.loss, record.draw) for record in _steps(reference)}
    made = _steps(other)
    made = list({record.step: record for record in made}.values()) if kept_only else made
    strange = sorted({r.step for r in made if losses.get(r.step) != (r.loss, r.draw)})
    return Differences(wrong, strange, len(expected), len(losses))


def final_state(folder: RunFolder) -> dict[str, str]:
    """Every tensor of the last checkpoint by hash of its bytes, and its facts."""
    last = catalogue(folder.checkpoints)[-1]
    state: dict[str, str] = {"step": str(last.step)}
    for path in sorted(last.path.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_tensor(name)
                digest = hashlib.sha256(tensor.tobytes()).hexdigest()
                state[f"{path.stem} {name}"] = f"{tensor.dtype} {tensor.shape} {digest}"
    facts = json.loads((last.path / "state.json").read_bytes())["facts"]
    return state | {f"fact {name}": json.dumps(facts[name], sort_keys=True) for name in facts}


def _all(folder: RunFolder) -> list[object]:
    return list(read_journal(folder))


def _steps(folder: RunFolder) -> list[StepRecord]:
    return [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
