import os
import threading
from pathlib import Path

from longhaul.supervise.causes import kernel_lines


def test_only_what_was_said_since_counts(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    said = (
        "6,1,5000000,-;an old story\n",
        "4,2,9000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7\n SUBSYSTEM=pci\n",
    )

    def speak() -> None:
        with path.open("w") as kernel:
            kernel.write(said[1])

    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that the writer need not wait
    speaker = threading.Thread(target=speak)
    speaker.start()
    speaker.join()
    assert kernel_lines(6.0, str(path)) == ["NVRM: Xid (PCI:0000:3b:00): 79, pid=7"]
    os.close(reader)
    path.unlink()
    path.write_text(said[0])
    assert kernel_lines(6.0, str(path)) == []


def test_a_kernel_log_that_may_not_be_read_is_empty(tmp_path: Path) -> None:
    assert kernel_lines(0.0, str(tmp_path / "none")) == []
