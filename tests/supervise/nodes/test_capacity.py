import math

from hypothesis import given
from hypothesis import strategies as st

from longhaul.parallel.layout import Layout
from longhaul.supervise.nodes.roster import fit


def test_five_hosts_down_and_four_spares_cost_one_replica() -> None:
    """OPT-175B: 124 hosts of 8, sharded data parallelism beside tensor parallelism of 8."""
    wanted = Layout(replicate=124, shard=1, tensor=8)
    layout, reason = fit(wanted, nodes=123, per_node=8, sequences=992)
    assert layout is not None
    assert (layout.replicate, layout.tensor) == (111, 8)
    assert layout.size == 111 * 8, "with 992 sequences 123 replicas take as long as 111: 9 rounds"
    assert "the same 992 sequences a step, each step about 1.1 times as long" in reason


def test_enough_nodes_change_nothing() -> None:
    wanted = Layout(2, 4, 1, 1)
    layout, _ = fit(wanted, nodes=3, per_node=4, sequences=32)
    assert layout == wanted


def test_sharding_is_kept_while_there_are_replicas_to_give_up() -> None:
    layout, reason = fit(Layout(4, 8, 1, 1), nodes=3, per_node=8, sequences=64)
    assert layout == Layout(3, 8, 1, 1)
    assert reason.startswith("3 nodes for 4: 3 of 4 replicas, the same 64 sequences")


def test_one_replica_is_sharded_less_and_it_is_said() -> None:
    layout, reason = fit(Layout(1, 16, 1, 1), nodes=1, per_node=8, sequences=64)
    assert layout == Layout(1, 8, 1, 1)
    assert "each process holds 2 times as much" in reason


def test_too_few_processes_for_a_model_wait_for_a_node() -> None:
    layout, reason = fit(Layout(2, 1, 4, 2), nodes=1, per_node=4, sequences=8)
    assert layout is None
    assert reason == "4 processes are fewer than the 8 that the model needs"


@given(
    st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]),
    st.integers(0, 40), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64),
)  # fmt: skip
def test_whatever_is_found_fits_and_is_as_fast_as_can_be(
    replicate, shard, tensor, pipeline, nodes, per_node, sequences
) -> None:
    wanted = Layout(replicate, shard, tensor, pipeline)
    layout, _ = fit(wanted, nodes, per_node, sequences)
    inner = tensor * pipeline
    if layout is None:
        assert nodes * per_node < inner
        return
    assert layout.size <= nodes * per_node
    assert (layout.tensor, layout.pipeline) == (tensor, pipeline)
    assert 1 <= layout.shard <= shard
    assert layout.replicate <= replicate
    if layout.replicate > 1:
        assert layout.shard == shard
    # No layout with the same sharding that fits makes fewer rounds.
    most = min(replicate, nodes * per_node // (inner * layout.shard))
    assert math.ceil(sequences / layout.data_size) <= math.ceil(sequences / (most * layout.shard))
