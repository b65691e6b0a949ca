"""Published failure rates add up to what their sources say."""

import pytest

from longhaul.plan.failure_rates import (
    ASSUMED,
    BLOOM_176B,
    LLAMA_3_405B,
    OPT_175B,
    PUBLISHED,
    all_rates,
)
from longhaul.supervise.causes import load_signatures


def test_llama_table_adds_up_to_its_total():
    assert sum(rate.count for rate in LLAMA_3_405B.rates) == 419
    assert LLAMA_3_405B.expected(16_384, 54) == pytest.approx(419)
    # "One every three hours."
    assert LLAMA_3_405B.seconds_between(16_384) / 3600 == pytest.approx(3.1, abs=0.05)


def test_opt_loses_two_machines_a_day():
    assert OPT_175B.expected(992, 1) == pytest.approx(2)
    # 35 manual and more than 70 automatic restarts.
    assert 105 <= OPT_175B.expected(992, 56) <= 120


def test_bloom_loses_one_or_two_gpus_a_week():
    assert 1 <= BLOOM_176B.expected(384, 7) <= 2


def test_a_young_cluster_fails_more_often_than_an_old_one():
    assert OPT_175B.per_gpu_day > 3 * LLAMA_3_405B.per_gpu_day
    assert OPT_175B.per_node_day == pytest.approx(8 * OPT_175B.per_gpu_day)


def test_every_rate_has_a_source_or_says_that_it_is_assumed():
    for _, rate in all_rates():
        assert rate.source
        assert rate.assumed == rate.source.startswith(ASSUMED)
    assert all(run.source and not run.source.startswith(ASSUMED) for run in PUBLISHED)
    assert not any(rate.assumed for rate in LLAMA_3_405B.rates)


def test_every_cause_is_one_that_the_supervisor_knows():
    known = {signature.cause for signature in load_signatures()} | {"hang"}
    assert {rate.signature for _, rate in all_rates()} <= known
