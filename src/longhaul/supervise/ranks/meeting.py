"""The port at which the ranks of an attempt meet, kept for rank 0 until it listens there.

Importing torch and preparing text take rank 0 seconds, in which any program might take a port that
was merely found free. So it stays bound, and rank 0, a fork, inherits the descriptor; torch's store
listens on it. Nobody listens before: who connects too early is refused and tries again. To a rank 0
that a command starts on another node nothing can be handed; a port that is free here is a guess
there, and a wrong guess costs a start (`restart.py`).

Enters: the posts of the ranks. Leaves: the environment that names the port.
Never knows: torch, or who meets whom.
"""

import os
import socket
from collections.abc import Mapping, Sequence

from longhaul.parallel.layout import KEPT_PORT
from longhaul.supervise.nodes.placement import Post

_LOOPBACK = "127.0.0.1"


class Meeting:
    """A port. Close it once rank 0 has been started: its copy of the descriptor holds the port.

    Args:
        posts: of the ranks, in their order; one rank alone meets nobody.
    """

    def __init__(self, posts: Sequence[Post]) -> None:
        self.environment: Mapping[str, str] = {}
        """Of every rank."""
        self.of_first: Mapping[str, str] = {}
        """Of rank 0 beside it."""
        self._descriptor = -1
        if len(posts) == 1:
            return
        # Other hosts need not reach a run that has only this one.
        kept = _bound(only_here=posts[0].environment["MASTER_ADDR"] == _LOOPBACK)
        self.environment = {"MASTER_PORT": str(kept.getsockname()[1])}
        self._descriptor = kept.detach()  # a fork must have no object that closes it some day
        if posts[0].command:
            self.close()
        else:
            self.of_first = {KEPT_PORT: str(self._descriptor)}

    def close(self) -> None:
        """Keep it no longer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _bound(only_here: bool) -> socket.socket:
    """A socket on a free port, which does not listen yet."""
    both = not only_here and socket.has_dualstack_ipv6()
    kept = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    # Without SO_REUSEADDR: with it another program that sets it too could bind to the same port.
    kept.bind(("::" if both else _LOOPBACK if only_here else "", 0))
    return kept
