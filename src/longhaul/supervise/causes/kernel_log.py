"""What the kernel has said lately: the out-of-memory killer, the GPU driver's Xid errors.

Enters: a time. Leaves: the kernel's lines since then; none where they may not be read.
Never knows: what they mean (`signatures.toml`).
"""

import os
from contextlib import suppress

from longhaul.core.units import Bytes, Seconds

LATELY_S: Seconds = 1800.0
"""What a rank dies of has befallen its device so long before at most: its collectives wait for
their timeout. An older message is of somebody else's death."""
_KERNEL_LOG = "/dev/kmsg"
_RECORD: Bytes = 8192
_MOST_RECORDS = 50_000


def kernel_lines(since: Seconds, path: str = _KERNEL_LOG) -> str:
    """The kernel's messages since a monotonic time, a line each.

    Many systems let only the administrator read them; then there are none.
    """
    lines: list[str] = []
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    record = os.read(descriptor, _RECORD).decode(errors="replace")
                except BrokenPipeError:  # the oldest were just written over
                    continue
                if not record:
                    break
                # "priority,sequence,microseconds since boot,flags;message"
                head, _, message = record.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdecimal() and int(fields[2]) / 1e6 >= since:
                    lines.append(message.split("\n", 1)[0])
        finally:
            os.close(descriptor)
    return "\n".join(lines)
