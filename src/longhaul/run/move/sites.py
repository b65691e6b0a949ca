"""The clusters of `clusters.toml` as copies between them need to know them."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from longhaul.config.problems import from_pydantic, lines_of_settings
from longhaul.config.section import Section
from longhaul.core.addresses import sealed
from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.strict import read_toml
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


class _Table(Section):
    """What copies need of a table `[cluster.NAME]`; its other keys belong to the launcher."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    runs: str = Field(min_length=1)
    remote: str = ""
    mb_per_s: float | None = Field(None, gt=0)
    cache_gb: float | None = Field(None, gt=0)

    def site(self, name: str) -> Site:
        runs = Path(self.runs).expanduser()
        return Site(name, runs, sealed(self.remote), self.mb_per_s, self.cache_gb)


PLACES = (Path("clusters.toml"), Path("~/.config/longhaul/clusters.toml"))
"""Where the file is looked for."""


def _is_file(path: Path) -> bool:
    return path.expanduser().is_file()


class Sites:
    """All clusters, by name."""

    def __init__(self, sites: Iterable[Site], file: str) -> None:
        self._sites = {site.name: site for site in sites}
        self._file = file

    @classmethod
    def load(cls, path: Path | None) -> "Sites":
        """Those of a `clusters.toml`: this one, or the first of `PLACES` that is there. UsageError
        if there is none or it is no TOML; RecipeError has every mistake in it.
        """
        found = path if path is not None else next((p for p in PLACES if _is_file(p)), None)
        if found is None or not _is_file(found):
            raise UsageError(
                f"{found or 'clusters.toml'}: not found",
                "say what clusters there are: docs/clusters.md has an example; --clusters FILE",
            )
        text, values = read_toml(found.expanduser())
        lines = {path: f"{found}:{n}" for path, n in lines_of_settings(text).items()}
        tables = values.get("cluster")
        sites, problems = [], []
        for name, table in tables.items() if isinstance(tables, dict) else ():
            try:
                sites.append(_Table.model_validate(table).site(name))
            except ValidationError as error:
                problems += [
                    from_pydantic({**one, "loc": ("cluster", name, *one["loc"])}, lines)
                    for one in error.errors(include_url=False)
                ]
        if problems or not sites:
            words = "\n".join(f"  {problem}" for problem in problems) or "  it names no [cluster.…]"
            raise RecipeError(f"{found}: clusters that cannot be used\n{words}", "mend the file")
        return cls(sites, str(found))

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
