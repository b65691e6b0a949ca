"""Which machine a node is: by its hardware, whatever it calls itself.

A replacement that comes back under another name is often the same bad machine (incident M8), so
a node is known by the serial numbers in it. What was decided about one of its parts holds for
every node in which that part is found.

Enters: what the system tells of its hardware. Leaves: a node's identity.
Never knows: what is thought of it.
"""

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{36})\s*$", re.M)
_NO_SERIAL = re.compile(
    r"(|0+|1234567.*|none|n/?a|unknown|default string|not (specified|available|applicable)"
    r"|to be filled.*|system serial number|base board serial number|x+|\.+|-+)",
    re.I,
)
"""What makers leave where a serial number should be; thousands of machines share these."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine."""

    host: str
    """What it calls itself: for people, never compared."""
    gpus: tuple[str, ...] = ()
    """UUIDs."""
    board: str = ""
    """Serial number of the main board; empty where it may not be read or is none."""
    machine_id: str = ""
    """Of the installed system. Images are cloned with it, and it is drawn anew at every
    installation, so it counts only where there is no hardware to go by."""

    @property
    def parts(self) -> frozenset[str]:
        """What it is known by, as `gpu:…`, `board:…`, `machine:…`."""
        hardware = {f"gpu:{gpu}" for gpu in self.gpus}
        if self.board:
            hardware.add(f"board:{self.board}")
        if not hardware:
            hardware.add(f"machine:{self.machine_id}" if self.machine_id else f"host:{self.host}")
        return frozenset(hardware)

    @property
    def key(self) -> str:
        """A short name for tables: its board, else its first other part."""
        return min(self.parts, key=lambda part: (not part.startswith("board:"), part))

    def shares(self, parts: Iterable[str]) -> frozenset[str]:
        """Those of its parts that are among `parts`."""
        return self.parts & frozenset(parts)


def node_of(host: str, parts: Iterable[str]) -> Node:
    """The node that is known by `parts`, as `Node.parts` writes them."""
    named = [part.partition(":")[::2] for part in sorted(parts)]
    by_kind = {kind: [value for own, value in named if own == kind] for kind, _ in named}
    return Node(
        host=host,
        gpus=tuple(by_kind.get("gpu", ())),
        board=next(iter(by_kind.get("board", ())), ""),
        machine_id=next(iter(by_kind.get("machine", ())), ""),
    )


def serial_or_none(text: str) -> str:
    """A serial number as read; empty if it is one of those that stand for none."""
    text = text.strip()
    return "" if _NO_SERIAL.fullmatch(text) else text


def read_node(root: Path = Path("/"), host: str | None = None) -> Node:
    """The machine this runs on. What cannot be read is left out.

    Args:
        root: the file system's.
        host: instead of its own name.
    """
    gpus = set()
    for about in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        gpus.update(_GPU_UUID.findall(_read(about)))
    board = serial_or_none(_read(root / "sys/class/dmi/id/board_serial"))
    return Node(
        host=platform.node() if host is None else host,
        gpus=tuple(sorted(gpus)),
        board=board or serial_or_none(_read(root / "sys/class/dmi/id/product_uuid")),
        machine_id=serial_or_none(_read(root / "etc/machine-id")),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
