from longhaul.config.load import load_recipe
from longhaul.parallel.layout import Layout
from longhaul.supervise.nodes.ledger import node_of
from longhaul.supervise.nodes.placement import Machine, World, posts_here, posts_on, within_layout

A, B = (Machine(n, 2, node_of(n, [f"board:{n.upper()}"]), address=f"10.0.0.{n}") for n in "ab")


def test_ranks_are_dealt_out_node_by_node() -> None:
    world = World((A, B), Layout(3), 4)
    assert [list(world.ranks(machine)) for machine in (A, B)] == [[0, 1], [2]]
    assert [world.machine_of(rank).name for rank in range(3)] == ["a", "a", "b"]
    told = [post.environment for post in posts_on(world)]
    assert [(t["RANK"], t["LOCAL_RANK"], t["LOCAL_WORLD_SIZE"]) for t in told] == [
        ("0", "0", "2"), ("1", "1", "2"), ("2", "0", "1"),
    ]  # fmt: skip
    assert {t["MASTER_ADDR"] for t in told} == {"10.0.0.a"}, "where rank 0 is"
    assert (told[2]["LONGHAUL_NODE"], told[2]["LONGHAUL_NODE_PARTS"]) == ("b", "board:B")


def test_one_machine_tells_its_workers_what_torchrun_would_but_for_the_port() -> None:
    assert [dict(post.environment) for post in posts_here(1)] == [{}]
    assert set(posts_here(2)[1].environment) == {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS",
    }  # fmt: skip


def test_a_shrunk_world_overrules_the_recipes_numbers_and_keeps_its_threads(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    full = posts_on(World((A, B), Layout(2, 2), 4))[0].environment
    small = posts_on(World((A,), Layout(1, 2), 4))[0].environment
    assert full["OMP_NUM_THREADS"] == small["OMP_NUM_THREADS"]
    recipe = load_recipe("drill", ["parallel.replicate=2", "parallel.shard=2"]).recipe
    assert within_layout(recipe, full) is recipe
    parallel = within_layout(recipe, small).parallel
    assert (parallel.replicate, parallel.shard) == (1, 2)


def test_a_node_is_the_same_read_back_from_its_parts() -> None:
    node = node_of("a", ["gpu:GPU-1", "gpu:GPU-2", "board:B7"])
    assert node_of("a", node.parts) == node
    assert node_of("a", {"machine:x"}).parts == {"machine:x"}
