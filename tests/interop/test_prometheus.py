"""`/metrics`, scraped over HTTP and read by Prometheus' own parser."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from longhaul.core.clocks import goodput, time_spent
from longhaul.core.records import StepRecord
from longhaul.interop.trackers.metrics import RunMetrics
from longhaul.interop.trackers.mirror import Mirror
from longhaul.interop.trackers.prometheus import MetricsEndpoint
from longhaul.logbook.reading import read_journal

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def endpoint():
    """A mirror as a new process makes it; all that a test makes are closed."""
    made = []

    def make(run, port=0, said=None):
        target = MetricsEndpoint("alpha", "127.0.0.1", port, ([] if said is None else said).append)
        made.append(target)
        path = run.folder.trackers / "prometheus.json"
        return Mirror(run.folder, target, path, print), target

    yield make
    for target in made:
        target.close()


def scraped(target):
    address = f"http://127.0.0.1:{target.port}/metrics"
    with urllib.request.urlopen(address, timeout=5) as answer:
        text = answer.read().decode()
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "run")): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_figures_are_those_of_the_journal(run, endpoint):
    run.troubled()
    run.decision("checkpoint-health", checkpoint=6, health="verified", manifest="a")
    run.decision("checkpoint-health", checkpoint=8, health="verified", manifest="b")
    run.decision("checkpoint-health", checkpoint=6, health="good", manifest="a")
    run.decision("checkpoint-health", checkpoint=8, health="poisoned", manifest="b")
    run.event("checkpoint-failed", message="full")
    mirror, target = endpoint(run)
    mirror.look()
    found = scraped(target)
    records = list(read_journal(run.folder))
    steps = [record for record in records if isinstance(record, StepRecord)]
    spent = time_spent(records)
    assert found["longhaul_step",] == 10 == steps[-1].step
    assert found["longhaul_target_steps",] == 20
    assert found["longhaul_training_loss",] == steps[-1].loss
    assert found["longhaul_validation_loss",] == 9.0
    assert found["longhaul_tokens_total",] == sum(step.tokens for step in steps)
    assert found["longhaul_throughput_tokens_per_second",] == 128 / 0.5
    assert found["longhaul_last_step_timestamp_seconds",] == steps[-1].time
    assert found["longhaul_goodput_ratio",] == pytest.approx(goodput(spent))
    for bucket, seconds in spent.items():
        assert found["longhaul_time_seconds_total", bucket] == pytest.approx(seconds)
    assert found["longhaul_rollbacks_total",] == 1
    assert found["longhaul_restarts_total",] == 1
    assert found["longhaul_findings_total", "alarm"] == 1
    assert found["longhaul_checkpoint_last_verified_step",] == 6
    assert found["longhaul_checkpoint_last_good_step",] == 6
    assert found["longhaul_checkpoint_failures_total",] == 1


def test_counters_go_on_after_a_restart_and_figures_follow_the_run(run, endpoint):
    run.begin(0)
    run.event("attempt-started", 0)
    run.steps(3, loss=float("nan"))
    mirror, target = endpoint(run)
    mirror.look()
    shown = scraped(target)
    assert shown["longhaul_training_loss",] != shown["longhaul_training_loss",]
    assert "longhaul_checkpoint_last_good_step" not in {name for name, *_ in shown}
    target.close()
    run.event("attempt-ended", cause="hang", reason="rank 1 hangs")
    run.begin(2, attempt=2)
    run.event("attempt-started", 2)
    run.steps(2)
    mirror, target = endpoint(run)
    mirror.look()
    shown = scraped(target)
    assert shown["longhaul_tokens_total",] == 5 * 128
    assert shown["longhaul_restarts_total",] == 1
    assert shown["longhaul_failures_total", "hang"] == 1
    run.event("finished", loss=1.0, bits_per_byte=0.5)
    run.event("attempt-ended", reason="finished")
    mirror.look()
    assert scraped(target)["longhaul_finished",] == 1


def test_a_taken_port_is_told_once_and_taken_over_when_it_is_free(run, endpoint):
    said = []
    run.begin(0)
    run.steps(1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        mirror, target = endpoint(run, other.getsockname()[1], said)
        for _ in range(12):
            mirror.look()
        assert target.port is None
        assert len(said) == 1
        assert "monitor.metrics_port" in said[0]
    mirror.look()
    assert scraped(target)["longhaul_step",] == 1


def test_replicas_that_are_away_and_back(run):
    fold = RunMetrics()
    run.begin(0)
    for kind, rank in (("lost", 1), ("lost", 2), ("lost", 2), ("back", 2)):
        fold.take(run.event(f"replica-{kind}", rank=rank))
    assert fold.away == [1]


def test_the_page_lists_every_metric():
    everything = RunMetrics(
        total_steps=1, loss=1.0, gradient_norm=1.0, learning_rate=1.0, loss_scale=1.0,
        validation_loss=1.0, bits_per_byte=1.0, last_step_time=1.0, rates=[(1, 1.0)],
        seconds={"training": 1.0}, saved={"verified": [1], "good": [1]},
    )  # fmt: skip
    names = {"longhaul_run_info"}
    for metric in everything.metrics():
        label = f"{{{metric.label}}}" if metric.label else ""
        names.add(f"longhaul_{metric.name}{'_total' * (metric.kind == 'counter')}{label}")
    page = Path(__file__).parents[2].joinpath("docs", "trackers.md").read_text()
    table = page.split("## Metrics")[1].split("\n## ")[0]
    listed = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`(longhaul_[^`]+)`", "".join(listed))) == names
