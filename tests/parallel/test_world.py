"""Two processes that meet on a port which is kept for the first."""

import os
import socket
import subprocess
import sys

from longhaul.parallel.layout import KEPT_PORT

MEETS = """
import os, torch
from longhaul.parallel.layout import find_place
from longhaul.parallel.world import meet, part
control = meet(find_place(os.environ), 60.0)
told = torch.tensor([int(os.environ["RANK"]) + 1])
torch.distributed.all_reduce(told, group=control.group)
print(int(told), flush=True)
part()
"""


def test_ranks_meet_on_a_port_that_was_kept_from_everybody_else() -> None:
    kept = socket.socket()
    kept.bind(("127.0.0.1", 0))
    port = kept.getsockname()[1]
    ranks = []
    for rank in range(2):
        told = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told |= {KEPT_PORT: kept.fileno()} if rank == 0 else {}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", MEETS],
                env=os.environ | {name: str(value) for name, value in told.items()},
                pass_fds=(kept.fileno(),) if rank == 0 else (),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    kept.close()
    try:
        said = [rank.communicate(timeout=60)[0].strip().splitlines()[-1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert said == ["3", "3"]
