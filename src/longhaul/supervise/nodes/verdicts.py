"""What rank 0 says of machines, as it comes: `machine-verdict` events in the pilot's journal.

Enters: a run's folder, an attempt. Leaves: verdicts, each once.
Never knows: how rank 0 has come to them, or what follows.
"""

from longhaul.core.records import Event, RecordError, from_line
from longhaul.core.units import Bytes
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import journal_files
from longhaul.supervise.nodes.answer import MachineVerdict

KIND = "machine-verdict"


class Verdicts:
    """The verdicts of one attempt.

    Args:
        folder: the run.
        attempt: whose journal is read.
    """

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._read: dict[str, Bytes] = {}

    def new(self) -> list[MachineVerdict]:
        """Those that came since the last call, in order."""
        found = []
        for file in journal_files(self._folder.journal):
            if file.attempt != self._attempt or not file.events or file.author != "pilot":
                continue
            begin = self._read.get(file.name, 0)
            with (self._folder.journal / file.name).open("rb") as lines:
                lines.seek(begin)
                added = lines.read()
            whole = added[: added.rfind(b"\n") + 1]
            self._read[file.name] = begin + len(whole)
            found += [v for line in whole.splitlines() if (v := _verdict(line)) is not None]
        return found


def newest_corrupt(folder: RunFolder, attempt: int) -> MachineVerdict | None:
    """The last verdict of an attempt about wrong numbers."""
    corrupt = [v for v in Verdicts(folder, attempt).new() if v.kind == "corrupt"]
    return corrupt[-1] if corrupt else None


def _verdict(line: bytes) -> MachineVerdict | None:
    if KIND.encode() not in line:
        return None
    try:
        record = from_line(line)
    except RecordError:
        return None
    if not isinstance(record, Event) or record.kind != KIND:
        return None
    data = record.data
    return MachineVerdict(
        str(data["kind"]), tuple(data["ranks"]), str(data["reason"]), data.get("sound_step")
    )
