"""`/metrics` of a run for Prometheus to scrape, served from a process beside training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import longhaul
from longhaul.core.records import Record
from longhaul.interop.trackers.metrics import Metric, RunMetrics
from longhaul.interop.trackers.mirror import Target

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_TRIES = 5
"""Looks for which a port may be taken without a word: an earlier supervisor's may be closing."""


class MetricsEndpoint(Target):
    """Serves the newest figures of a run; every metric has the label `run`."""

    def __init__(self, run: str, host: str, port: int, say: Callable[[str], None]) -> None:
        self._run, self._host, self._port, self._say = run, host, port, say
        self._fold = RunMetrics()
        self._shown: Sequence[Metric] = ()
        """Replaced as a whole: threads that answer read it."""
        self._server: WSGIServer | None = None
        self._failed = 0

    @property
    def port(self) -> int | None:
        """Where it listens; None while the port is another's."""
        return self._server.server_port if self._server else None

    def take(self, record: Record) -> None:
        """See `Target`."""
        self._fold.take(record)

    def look_ends(self) -> None:
        """See `Target`."""
        self._shown = tuple(self._fold.metrics())
        if self._server is None:
            self._listen()

    def state(self) -> Mapping[str, Any]:
        """See `Target`."""
        return self._fold.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Target`."""
        self._fold = RunMetrics.restored(state)

    def close(self) -> None:
        """See `Target`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def collect(self) -> Iterator["Family"]:
        """What prometheus_client asks for at every scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        about = {"run": self._run, "version": longhaul.__version__}
        info = GaugeMetricFamily("longhaul_run_info", "Which run this is.", labels=list(about))
        info.add_metric(list(about.values()), 1.0)
        yield info
        for metric in self._shown:
            kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            labels = ["run", *([metric.label] if metric.label else ())]
            family = kind(f"longhaul_{metric.name}", metric.help, labels=labels)
            for value_of_label, value in metric.samples.items():
                family.add_metric([self._run, value_of_label][: len(labels)], value)
            yield family

    def _listen(self) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(self._port, self._host, registry)
        except OSError as error:
            self._failed += 1
            if self._failed == _TRIES:
                self._say(
                    f"monitor.metrics_port: {self._host}:{self._port} cannot be listened on "
                    f"({error.strerror or error}): there are no metrics until it can be"
                )
            return
        if self._failed >= _TRIES:
            self._say(f"metrics are served on {self._host}:{self.port} now")
        self._failed = 0
