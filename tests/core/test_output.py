"""Writing must never wait for a reader."""

import fcntl
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from longhaul.core.output import Output, Stream, flush_outputs, output, print_error, write_to


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page."""
    reading_end, writing_end = os.pipe()
    fcntl.fcntl(writing_end, fcntl.F_SETPIPE_SZ, 4096)
    yield reading_end, writing_end
    os.set_blocking(reading_end, False)
    with suppress(BlockingIOError):  # lets the writer's thread go
        while os.read(reading_end, 65536):
            pass
    os.close(reading_end)


def read_until(reading_end: int, wanted: bytes) -> bytes:
    read, deadline = b"", time.monotonic() + 30
    os.set_blocking(reading_end, False)
    while wanted not in read and time.monotonic() < deadline:
        try:
            read += os.read(reading_end, 65536)
        except BlockingIOError:
            time.sleep(0.01)
    return read


def test_what_is_read_arrives_whole_and_in_order(pipe: tuple[int, int]) -> None:
    reading_end, writing_end = pipe
    out = Output(writing_end)
    for number in range(100):
        out.write(f"line {number}\n")
    read = read_until(reading_end, b"line 99\n")
    assert read.decode().splitlines() == [f"line {number}" for number in range(100)]


def test_nobody_reads_and_writing_goes_on(pipe: tuple[int, int]) -> None:
    """Far more than the pipe and the queue hold; whoever waits here never comes back."""
    reading_end, writing_end = pipe
    out = Output(writing_end, kept_in="workers/0.log")
    for number in range(20_000):
        out.write(f"a line that nobody reads: {number}\n")
    assert not out.flush(0.01)
    read = read_until(reading_end, b"has them").decode()
    shown = [line for line in read.splitlines() if line.startswith("a line")]
    *_, told = read.splitlines()
    assert "lines were not shown while nobody read; workers/0.log has them" in told
    dropped = int(told.strip("(").split()[0].replace(",", ""))
    assert len(shown) + dropped == 20_000
    numbers = [int(line.rpartition(" ")[2]) for line in shown]
    assert numbers == sorted(set(numbers)), "in order, none twice"


def test_words_of_a_signal_handler_wait_for_nobody(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a standard error that is full; a handler that waits there hears no further signal."""

    def tell() -> None:
        for number in range(1000):
            print_error(f"SIGTERM: finishing step {number}")

    monkeypatch.setattr("longhaul.core.output._outputs", {})
    with open(pipe[1], "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        telling.join(10)
        waits = telling.is_alive()
        read_until(pipe[0], b"finishing step 999\n" if waits else b"not shown")
        telling.join(10)
    assert not waits


def test_a_reader_that_comes_back_sees_new_lines(pipe: tuple[int, int]) -> None:
    reading_end, writing_end = pipe
    out = Output(writing_end)
    out.write("x" * 60_000 + "\n")
    read_until(reading_end, b"\n")
    out.write("new\n")
    assert read_until(reading_end, b"new\n").endswith(b"new\n")


def test_a_reader_that_has_left_ends_nothing(pipe: tuple[int, int]) -> None:
    reading_end, writing_end = pipe
    os.dup2(os.open(os.devnull, os.O_RDONLY), reading_end)
    out = Output(writing_end)
    out.write("nobody\n")
    assert out.flush(30)


def test_a_stream_without_a_descriptor_is_written_to_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    write_to(sys.stdout, "to a test\n")
    assert Stream(text).write("again\n") == 6
    assert text.getvalue() == "to a test\nagain\n"


def test_a_forked_child_has_a_writer_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """The thread that writes is not in the child, which would fill its queue and be silent."""
    output(1).write("parent\n")
    flush_outputs(30)
    child = os.fork()
    if not child:
        output(1).write("child\n")
        flush_outputs(30)
        os._exit(0)
    os.waitpid(child, 0)
    assert capfd.readouterr().out == "parent\nchild\n"
