"""`longhaul data push`, `pull` and `serve`: prepared text between clusters and their nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import PREPARED, RUNS, PreparedFolder, RunsFolder
from longhaul.cli.move import Clusters, Here
from longhaul.core.errors import UsageError

if TYPE_CHECKING:
    from longhaul.data.shard_cache import ShardCache
    from longhaul.run.move.sites import Site
    from longhaul.store.store_files import StoreFiles

Text = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="a prepared folder's name, such as text-1a2b3c4d5e6f"),
]
Streams = Annotated[int, typer.Option("--streams", min=1, max=64, help="files at once")]
Rate = Annotated[
    float | None,
    typer.Option("--mb-per-s", help="ceiling in MB/s", show_default="that of clusters.toml"),
]
Cache = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="keep shards there, and link them")
]
CacheSize = Annotated[
    float | None,
    typer.Option("--cache-gb", help="most that lies there", show_default="that of clusters.toml"),
]
_LOOK_EVERY_S = 1.0


def push(
    dataset: Text,
    to: Annotated[str, typer.Option("--to", metavar="CLUSTER|URL", help="where to")],
    streams: Streams = 4,
    mb_per_s: Rate = None,
    here: Here = None,
    clusters: Clusters = None,
    prepared_dir: PreparedFolder = PREPARED,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Bring prepared text to a cluster's store; what is there already is compared, and stays.

    It yields when a live run of --runs-dir slows down. Cut off, the same command goes on.
    """
    from longhaul.core.clocks import RealClock
    from longhaul.core.output import print_out
    from longhaul.data.transport import push as push_text
    from longhaul.store.live_pace import yielding

    clock = RealClock()
    folder = prepared_dir / dataset if (prepared_dir / dataset).is_dir() else Path(dataset)
    files, *_ = _place(to, folder.name, mb_per_s, here, clusters)
    with yielding(files.throttle, runs_dir, clock):
        done = push_text(folder, files, streams, clock, print_out)
    print(f"{folder.name} is in {files.name}: {done}")


def pull(
    dataset: Text,
    source: Annotated[str, typer.Option("--from", metavar="CLUSTER|URL", help="where from")],
    streams: Streams = 4,
    mb_per_s: Rate = None,
    cache: Cache = None,
    cache_gb: CacheSize = None,
    node: Annotated[
        list[str],
        typer.Option("--node", metavar="URL", help="a node that serves shards; may be repeated"),
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    own: Annotated[
        str, typer.Option("--own", metavar="URL", help="which --node this machine is")
    ] = "",
    stream: Annotated[
        bool, typer.Option("--stream", help="let shards come to --cache while they are read")
    ] = False,
    here: Here = None,
    clusters: Clusters = None,
    prepared_dir: PreparedFolder = PREPARED,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Bring prepared text here from a store; it appears in --prepared-dir when it is whole.

    With --stream it is ready at once, and a run fetches the shards that it is about to read; its
    recipe needs order.shuffle_tokens. What comes now yields when a live run of --runs-dir slows
    down. Cut off, the same command goes on.
    """
    from longhaul.core.addresses import sealed
    from longhaul.core.clocks import RealClock
    from longhaul.core.output import print_out
    from longhaul.data.shard_server import PassedShards
    from longhaul.data.streaming import StreamSettings, stream_of
    from longhaul.data.transport import pull as pull_text
    from longhaul.store.live_pace import yielding

    clock = RealClock()
    files, site, address, limit = _place(source, dataset, mb_per_s, here, clusters)
    if node and cache is None:
        raise UsageError(
            "data pull: --node needs --cache", "say where shards are kept: --cache DIR"
        )
    if stream and cache is None:
        raise UsageError(
            "data pull: --stream needs --cache", "say where shards are kept: --cache DIR"
        )
    fetch = streaming = None
    if cache is not None and stream:
        room = _cache(cache, cache_gb, site).most_bytes
        if "***" in (kept := sealed(address)):
            raise UsageError(
                f"data pull: {kept} holds a secret, which no file may keep",
                "write it as ${NAME} of an environment variable, which training sees too",
            )
        where = str(cache.absolute())  # links in it may lead elsewhere on another node
        streaming = StreamSettings(kept, where, room, {}, tuple(node), own, streams, limit)
    elif cache is not None:
        shards = PassedShards(_cache(cache, cache_gb, site), files, node, own, print_out)
        fetch = shards.link
    with yielding(files.throttle, runs_dir, clock):
        done = pull_text(files, dataset, prepared_dir, streams, clock, print_out, fetch, streaming)
    if streaming is not None and stream_of(prepared_dir / dataset) is not None:
        print(f"{dataset} in {prepared_dir / dataset} comes while it is read: {done}")
        return
    print(f"{dataset} is in {prepared_dir / dataset}: {done}")


def serve(
    dataset: Text,
    source: Annotated[str, typer.Option("--from", metavar="CLUSTER|URL", help="where from")],
    cache: Annotated[Path, typer.Option("--cache", metavar="DIR", help="where shards are kept")],
    cache_gb: CacheSize = None,
    host: Annotated[str, typer.Option("--host", help="to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one")] = 9500,
    mb_per_s: Rate = None,
    here: Here = None,
    clusters: Clusters = None,
) -> None:
    """Pass shards to other nodes, each read from the store once, until interrupted.

    Whoever reaches the port can read the text.
    """
    from longhaul.core.output import print_out
    from longhaul.data.shard_server import PassedShards, serving
    from longhaul.data.transport import entries_of_text

    files, site, *_ = _place(source, dataset, mb_per_s, here, clusters)
    shards = PassedShards(_cache(cache, cache_gb, site), files, (), "", print_out)
    with serving(shards, entries_of_text(files), host, port) as bound:
        print_out(f"serving {dataset} on http://{host}:{bound}")
        while True:
            time.sleep(_LOOK_EVERY_S)


def _place(
    given: str, name: str, mb_per_s: float | None, here: str | None, clusters: Path | None
) -> tuple[StoreFiles, Site | None, str, float | None]:
    """The files of a text in a store, the cluster that it is of, if it was named, the text's
    address, and the ceiling in bytes/s.
    """
    from longhaul.run.move.sites import DATASETS, Sites, limit_of
    from longhaul.store.store_files import StoreFiles
    from longhaul.store.transfers import Pace, Throttle

    if "://" in given or "/" in given:
        limit = None if mb_per_s is None else mb_per_s * 1e6
        where = given.rstrip("/") if "://" in given else str(Path(given).resolve())
        address = f"{where}/{name}"
        return StoreFiles(address, throttle=Throttle(Pace(limit))), None, address, limit
    sites = Sites.load(clusters)
    site = sites.named(given)
    near = [site] if here is None else [site, sites.named(here)]
    limit = limit_of(*near) if mb_per_s is None else mb_per_s * 1e6
    address = f"{site.store()}/{DATASETS}/{name}"
    return StoreFiles(address, throttle=Throttle(Pace(limit))), site, address, limit


def _cache(folder: Path, cache_gb: float | None, site: Site | None) -> ShardCache:
    from longhaul.data.shard_cache import ShardCache

    size = int(cache_gb * 1e9) if cache_gb is not None else site.cache_bytes if site else None
    if size is None or size <= 0:
        raise UsageError("--cache: no size is known for it", "give one, as --cache-gb 500")
    return ShardCache(folder, size)
