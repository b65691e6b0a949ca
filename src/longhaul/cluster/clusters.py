"""`clusters.toml`: each cluster described once, for launches, copies and bills."""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from longhaul.config.load import tupled
from longhaul.config.problems import Problem, from_pydantic, lines_of_settings, raise_problems
from longhaul.config.section import Section
from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.strict import DamagedFile, read_toml
from longhaul.core.units import Bytes

Scheduler = Literal["slurm", "k8s", "sky", "ssh"]
FILE_NAME = "clusters.toml"
_SEE = "docs/launch.md lists every key of a cluster"
_NAME = r"^[\w.-]+$"


class Fault(Section):
    """A known fault of a cluster, with what gets round it."""

    name: str = Field(pattern=_NAME)
    note: str = ""
    """What goes wrong without the workaround, and who has reported it."""
    environment: dict[str, str] = {}
    """Variables that make the workaround; they are set for all processes of a job."""
    check: str = Field(min_length=1)
    """A shell command that ends with 0 where the workaround holds; run at each start of a job."""


class Cluster(Section):
    """One cluster."""

    scheduler: Scheduler | None = None
    """Who starts jobs there; absent: nothing is launched there, text and runs are only copied."""
    runs: str = Field(min_length=1)
    """Its folder of runs, as its own machines see it."""
    prepared: str = "prepared"
    """Its folder of prepared text."""
    workdir: str = ""
    """The folder in which a job works; empty: that of `longhaul launch`."""
    python: str = "python3"
    """The interpreter that has longhaul there."""

    partition: str = ""
    """Of Slurm; of Kubernetes the queue's name (`kueue.x-k8s.io/queue-name`)."""
    account: str = ""
    namespace: str = "default"
    """Of Kubernetes."""
    infra: str = ""
    """Of SkyPilot, such as `aws/us-east-1` or `lambda`."""
    hosts: tuple[str, ...] = ()
    """Of plain SSH: where `ssh HOST` gets in without a password, spares last."""
    image: str = ""
    """A container image: of a registry, or on Slurm and SSH a file for `apptainer exec`."""
    mounts: tuple[str, ...] = ()
    """`SOURCE:TARGET`: a host's folder, or on SkyPilot a bucket, and where the job sees it."""

    gpu: str = ""
    """The device's name as the scheduler calls it, such as `h100` or `H100`."""
    gpus_per_node: int = Field(0, ge=0)
    workers_per_node: int | None = Field(None, gt=0)
    """Processes; one for each GPU when absent, and one on a node without a GPU."""
    nodes: int = Field(1, gt=0)
    """Nodes that a job takes when `--nodes` is absent."""
    spares: int = Field(0, ge=0)
    """Nodes beyond these that a job takes if there are any."""
    hours: float | None = Field(None, gt=0)
    """The scheduler's limit of one job; absent: the partition's own."""
    notice_s: int = Field(120, gt=0)
    """How long before the limit the run is told to save and end."""

    fabric: str = ""
    """The network between nodes, for people, such as `infiniband ndr400`."""
    environment: dict[str, str] = {}
    """Variables of all processes: NCCL's and the fabric's."""
    fault: tuple[Fault, ...] = ()
    """Known faults, each with its workaround."""

    remote: str = ""
    """The address of its store (fsspec)."""
    data: tuple[str, ...] = ()
    """Folders, addresses or names of prepared texts that lie there."""
    node_ledger: str = ""
    """The folder of what was seen of its nodes (`supervise.node_ledger`)."""
    qualified: str = ""
    """The report of `longhaul qualify --json` about it, for `--on any`."""
    price: float | None = Field(None, ge=0)
    """Of one GPU for an hour, in any currency that all clusters share."""
    mb_per_s: float | None = Field(None, gt=0)
    """Ceiling of all copies of one command together, 1e6 bytes per second."""
    cache: str = ""
    """A folder on each node to which shards come while a launched job reads them, where its recipe
    has `order.shuffle_tokens`."""
    cache_gb: float | None = Field(None, gt=0)
    """Room for shards, on each node."""

    @property
    def workers(self) -> int:
        """Processes on one of its nodes."""
        return self.workers_per_node or self.gpus_per_node or 1

    @property
    def variables(self) -> dict[str, str]:
        """Those of the fabric, and on top of them those of the workarounds."""
        found = dict(self.environment)
        for fault in self.fault:
            found |= fault.environment
        return found

    @property
    def cache_bytes(self) -> Bytes | None:
        """The room for shards in bytes."""
        return None if self.cache_gb is None else int(self.cache_gb * 1e9)


@dataclass(frozen=True)
class Clusters:
    """All clusters by name, in the order of the file."""

    by_name: Mapping[str, Cluster]
    file: Path

    def named(self, name: str) -> Cluster:
        """The cluster of this name; UsageError tells the nearest."""
        if name in self.by_name:
            return self.by_name[name]
        near = difflib.get_close_matches(name, self.by_name, n=1, cutoff=0.5)
        raise UsageError(
            f"cluster {name}: not in {self.file}",
            f"did you mean {near[0]}?" if near else f"it has: {', '.join(self.by_name)}",
        )

    def of_scheduler(self, scheduler: Scheduler) -> dict[str, Cluster]:
        """Those on which this scheduler starts jobs."""
        return {n: c for n, c in self.by_name.items() if c.scheduler == scheduler}


def find_clusters(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The file given, or `./clusters.toml`, or that of `~/.config/longhaul`; UsageError if there is
    none of these.
    """
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")) / ".config")
    searched = [given] if given else [Path(FILE_NAME), Path(home) / "longhaul" / FILE_NAME]
    for path in searched:
        if path.is_file():
            return path
    raise UsageError(
        f"{FILE_NAME}: not found ({', '.join(map(str, searched))})",
        "write one (docs/launch.md has an example), or name it with --clusters FILE",
    )


def load_clusters(given: Path | None = None) -> Clusters:
    """The clusters of a file, searched by `find_clusters`; RecipeError has every mistake in it."""
    path = find_clusters(given)
    try:
        text, values = read_toml(path)
    except DamagedFile as error:
        raise RecipeError(error.message, "mend the file") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    origins = {at: f"{path.name}:{line}" for at, line in lines_of_settings(text).items()}
    found: dict[str, Cluster] = {}
    problems = list(_read(values, origins, found))
    raise_problems(problems, str(path), "file", _SEE)
    return Clusters(found, path)


def _read(
    values: Mapping[str, Any], origins: Mapping[str, str], found: dict[str, Cluster]
) -> Iterator[Problem]:
    for key in values.keys() - {"cluster"}:
        yield Problem(key, "unknown table; did you mean cluster.NAME?", origins.get(key, ""))
    tables = values.get("cluster", {})
    if not isinstance(tables, Mapping) or not tables:
        yield Problem("cluster", "has no table such as [cluster.east]", origins.get("cluster", ""))
        return
    for name, table in tables.items():
        path = f"cluster.{name}"
        if not isinstance(table, Mapping):
            yield Problem(path, f"{table!r} is not a table of settings", origins.get(path, ""))
            continue
        try:
            found[name] = Cluster.model_validate(tupled(table))
        except ValidationError as error:
            known = [*_known(Cluster, path)]
            for detail in error.errors():
                detail["loc"] = ("cluster", name, *detail["loc"])
                yield from_pydantic(detail, origins, known)
            continue
        yield from _combinations(path, found[name], origins)


def _known(section: type[Section], prefix: str) -> Iterator[str]:
    for key in section.model_fields:
        yield f"{prefix}.{key}"
    if section is Cluster:
        yield from _known(Fault, f"{prefix}.fault")


def _combinations(path: str, cluster: Cluster, origins: Mapping[str, str]) -> Iterator[Problem]:
    """What only together makes no sense."""
    where = origins.get(path, "")
    if cluster.scheduler == "k8s" and not cluster.image:
        yield Problem(f"{path}.image", "is required by Kubernetes and was not given", where)
    if cluster.scheduler == "ssh" and not cluster.hosts:
        yield Problem(f"{path}.hosts", "is required by plain SSH and was not given", where)
    if cluster.scheduler == "sky" and not cluster.gpu and cluster.gpus_per_node:
        yield Problem(f"{path}.gpu", "is required by SkyPilot and was not given", where)
    for number, mount in enumerate(cluster.mounts):
        if not mount.rpartition(":")[0] or not mount.rpartition(":")[2].startswith("/"):
            yield Problem(
                f"{path}.mounts.{number}", f"{mount!r} is not SOURCE:/TARGET",
                origins.get(f"{path}.mounts", where),
            )  # fmt: skip
    names = [fault.name for fault in cluster.fault]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"{path}.fault", f"two faults are called {name}", where)
