"""Whether two runs ended in the same bytes and had the same losses on their way there."""

import hashlib
import json
from dataclasses import dataclass

from safetensors import safe_open

from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.store.catalogue import catalogue


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


def differences(
    reference: RunFolder, other: RunFolder, *, kept_only: bool = False, settings: bool = True
) -> Differences:
    """What differs between a baseline run and another one: `kept_only` leaves out steps that were
    made again later, `settings` compares those in the last state too.
    """
    expected, found = final_state(reference, settings), final_state(other, settings)
    names = expected.keys() | found.keys()
    wrong = sorted(name for name in names if expected.get(name) != found.get(name))
    losses = {record.step: (record.loss, record.draw) for record in steps_of(reference)}
    made = steps_of(other)
    made = list({record.step: record for record in made}.values()) if kept_only else made
    strange = sorted({r.step for r in made if losses.get(r.step) != (r.loss, r.draw)})
    return Differences(wrong, strange, len(expected), len(losses))


def final_state(folder: RunFolder, settings: bool = True) -> dict[str, str]:
    """The last checkpoint's facts, if wanted with the settings, and a hash of each tensor."""
    last = catalogue(folder.checkpoints)[-1]
    state: dict[str, str] = {"step": str(last.step)}
    for path in sorted(last.path.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_tensor(name)
                digest = hashlib.sha256(tensor.tobytes()).hexdigest()
                state[f"{path.stem} {name}"] = f"{tensor.dtype} {tensor.shape} {digest}"
    facts = json.loads((last.path / "state.json").read_bytes())["facts"]
    if not settings:
        del facts["progress"]["settings"]
    return state | {f"fact {name}": json.dumps(facts[name], sort_keys=True) for name in facts}


def steps_of(folder: RunFolder) -> list[StepRecord]:
    """Every step in a run's journal so far, those made again included."""
    return [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
