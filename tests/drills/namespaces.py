"""Nodes of their own network on one machine: namespaces joined by a router in this process, which
delays what passes between two of them. The kernel here has no netem; TUN devices need none.
"""

import fcntl
import heapq
import itertools
import os
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 9000
_MOST_BYTES = 65_536


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    probe = f"lhq{os.getpid()}"
    try:
        ended = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    except OSError:
        return "there is no `ip` (iproute2)"
    if ended.returncode:
        return f"ip netns add: {ended.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return ""


class Network:
    """Namespaces with the names of nodes, `10.97.0.1` and so on; a context manager."""

    def __init__(
        self, nodes: Sequence[str], delays_s: Mapping[tuple[str, str], float] | None = None
    ) -> None:
        """`delays_s`: what is added to each packet from the first to the second."""
        self.nodes = tuple(nodes)
        self._delays_s = dict(delays_s or {})
        self._tuns: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._route, daemon=True)

    def address(self, node: str) -> str:
        return f"10.97.0.{self.nodes.index(node) + 1}"

    def namespace(self, node: str) -> str:
        return f"lh{os.getpid()}{node}"

    def interface(self, node: str) -> str:
        return f"lht{self.nodes.index(node)}"

    def command(self, node: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(node)]

    def __enter__(self) -> "Network":
        try:
            for node in self.nodes:
                self._open(node)
        except BaseException:
            self.__exit__()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(5)
        for tun in self._tuns:
            os.close(tun)
        for node in self.nodes:
            _ip("netns", "del", self.namespace(node), check=False)

    def _open(self, node: str) -> None:
        space, device = self.namespace(node), self.interface(node)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._tuns.append(tun)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("netns", "add", space)
        _ip("link", "set", device, "netns", space)
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address(node)}/24", "dev", device),
            ("link", "set", device, "mtu", str(_MTU)),
            ("link", "set", device, "up"),
        ):
            _ip("netns", "exec", space, "ip", *words)

    def _route(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        selector = selectors.DefaultSelector()
        for place, tun in enumerate(self._tuns):
            selector.register(tun, selectors.EVENT_READ, place)
        while not self._stopped.is_set():
            due = waiting[0][0] - time.monotonic() if waiting else 0.1
            for key, _ in selector.select(max(0.0, min(0.1, due))):
                with suppress(BlockingIOError):
                    while packet := os.read(key.fd, _MOST_BYTES):
                        self._take(key.data, packet, waiting, next(order))
            while waiting and waiting[0][0] <= time.monotonic():
                *_, tun, packet = heapq.heappop(waiting)
                with suppress(OSError):  # a full queue drops, as any router does
                    os.write(tun, packet)

    def _take(self, begin: int, packet: bytes, waiting: list, number: int) -> None:
        if packet[0] >> 4 != 4:
            return
        end = packet[19] - 1  # the last byte of its destination
        if not 0 <= end < len(self.nodes):
            return
        delay = self._delays_s.get((self.nodes[begin], self.nodes[end]), 0.0)
        if delay:
            heapq.heappush(waiting, (time.monotonic() + delay, number, self._tuns[end], packet))
            return
        with suppress(OSError):
            os.write(self._tuns[end], packet)


def _ip(*words: str, check: bool = True) -> None:
    ended = subprocess.run(["ip", *words], capture_output=True, check=False)
    if check and ended.returncode:
        raise OSError(f"ip {' '.join(words)}: {ended.stderr.decode().strip()}")
