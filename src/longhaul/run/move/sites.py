"""The clusters of `clusters.toml` as copies between them need to know them."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from longhaul.cluster.clusters import load_clusters
from longhaul.core.addresses import sealed
from longhaul.core.errors import UsageError
from longhaul.core.units import Bytes

DATASETS = "datasets"
"""Folder of prepared texts in a cluster's store; a run is called otherwise."""


@dataclass(frozen=True)
class Site:
    """One cluster."""

    name: str
    runs: Path
    """Its folder of runs, as its own machines see it."""
    remote: str = ""
    """Address of its store; empty if it has none."""
    mb_per_s: float | None = None
    """Ceiling of all copies of one command together; None: none."""
    cache_gb: float | None = None
    """Room for shards (`data pull --cache`)."""
    prepared: Path = Path("prepared")
    """Its folder of prepared text, as its own machines see it."""

    def store(self) -> str:
        """The address of its store; UsageError if it has none."""
        if not self.remote:
            raise UsageError(
                f"cluster {self.name}: clusters.toml names no remote tier of it",
                "set its remote, such as s3://bucket/folder",
            )
        return self.remote.rstrip("/")

    @property
    def cache_bytes(self) -> Bytes | None:
        """The room for shards in bytes."""
        return None if self.cache_gb is None else int(self.cache_gb * 1e9)


class Sites:
    """All clusters, by name."""

    def __init__(self, sites: Iterable[Site], file: str) -> None:
        self._sites = {site.name: site for site in sites}
        self._file = file

    @classmethod
    def load(cls, path: Path | None) -> "Sites":
        """Those of a `clusters.toml`, searched and refused as by `load_clusters`."""
        clusters = load_clusters(path)
        sites = [
            Site(
                name, Path(one.runs).expanduser(), sealed(one.remote), one.mb_per_s, one.cache_gb,
                Path(one.prepared).expanduser(),
            )
            for name, one in clusters.by_name.items()
        ]  # fmt: skip
        return cls(sites, str(clusters.file))

    @property
    def all(self) -> tuple[Site, ...]:
        """In the order of the file."""
        return tuple(self._sites.values())

    def named(self, name: str) -> Site:
        """The cluster of this name; UsageError tells those that there are."""
        if name in self._sites:
            return self._sites[name]
        near = difflib.get_close_matches(name, self._sites, n=1, cutoff=0.5)
        raise UsageError(
            f"cluster {name}: not in {self._file}",
            f"did you mean {near[0]}?" if near else f"it has: {', '.join(self._sites)}",
        )

    def here(self, runs: Path, name: str | None) -> Site:
        """The cluster that this machine is in: that of the `name`, or else the one whose folder of
        runs is `runs`. UsageError if that is none, or several.
        """
        if name is not None:
            return self.named(name)
        own = [site for site in self.all if site.runs.resolve() == runs.resolve()]
        if len(own) == 1:
            return own[0]
        which = f"{len(own)} clusters have" if own else "no cluster has"
        raise UsageError(
            f"{which} the folder of runs {runs.resolve()} in {self._file}",
            "say which one this is: --here NAME, or LONGHAUL_CLUSTER=NAME",
        )

    def other(self, name: str, here: Site) -> Site:
        """Another cluster than this one, by name; UsageError if it is this one, or unknown."""
        site = self.named(name)
        if site.name == here.name:
            raise UsageError(f"cluster {name}: this is it", "name the other one")
        return site


def limit_of(*sites: Site) -> float | None:
    """Bytes per second that a copy between these may take; None if none of them has a ceiling."""
    ceilings = [site.mb_per_s for site in sites if site.mb_per_s is not None]
    return min(ceilings) * 1e6 if ceilings else None
