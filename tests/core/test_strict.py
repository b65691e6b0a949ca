"""Reading files that nobody vouches for."""

import os
from pathlib import Path
from threading import Thread

from longhaul.core.strict import DamagedFile, lines_of, read_bytes


def test_a_pipe_is_refused_and_nobody_waits_for_what_comes_through_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    refused: list[DamagedFile] = []

    def read() -> None:
        try:
            read_bytes(pipe)
        except DamagedFile as error:
            refused.append(error)

    reading = Thread(target=read, daemon=True)
    reading.start()
    reading.join(5)
    waits = reading.is_alive()
    if waits:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # lets it go
    assert not waits
    assert "not a plain file" in str(refused[0])


def test_a_journal_of_nul_bytes_is_never_in_memory_whole(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    os.truncate(journal, 1 << 20)
    assert [len(line) for line in lines_of(journal, most=1 << 10)] == [1 << 10]
