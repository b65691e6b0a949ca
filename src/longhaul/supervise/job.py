"""What a supervisor is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longhaul.config.recover import SuperviseSection
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.causes import Signature
from longhaul.supervise.nodes.placement import NodePlan


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be supervised."""

    folder: RunFolder
    settings: SuperviseSection
    processes: int
    """Workers on this machine, where there are no `nodes`."""
    work: Callable[[], None]
    """What a worker does in its process; leaves by SystemExit with its exit code."""
    signatures: Sequence[Signature]
    device: Callable[[], str] = str
    """The device's name, as far as it is known by then: a new run's first attempt finds it out."""
    nodes: NodePlan | None = None
    """What the recipe says of nodes; None: this machine is all there is."""
    program: tuple[str, ...] = ()
    """A command line that does what `work` does, for nodes where a fork cannot be."""
    each: int | None = None
    """Processes of one replica, where replicas come and go; None: all are one group."""
