from types import SimpleNamespace

import pytest

from longhaul.core.pieces import Pieces, pieces_of
from longhaul.optim import sharding as sharding_module
from longhaul.optim.sharding import Dealing


@pytest.mark.parametrize(("replicas", "holders"), [(1, 1), (1, 4), (2, 2), (3, 2)])
def test_every_matrix_is_computed_once_and_the_work_is_even(
    monkeypatch: pytest.MonkeyPatch, replicas: int, holders: int
) -> None:
    sizes = {"replicas": replicas, "holders": holders}
    monkeypatch.setattr(sharding_module.dist, "get_world_size", sizes.__getitem__)
    sharding = SimpleNamespace(replicas="replicas", holders="holders")
    pieces = Pieces((4, 4), tuple(map(tuple, pieces_of((4, 4), None, holders, 1))), holder=0)
    work = dict.fromkeys(((r, h) for r in range(replicas) for h in range(holders)), 0)
    dealt = 0
    for count in (3, 1, 7, 5):
        numbers = Dealing(sharding, pieces, count, dealt)._numbers  # type: ignore[arg-type]
        flat = sorted(n for of_replica in numbers for of_rank in of_replica for n in of_rank)
        assert flat == list(range(count))
        for r, h in work:
            work[r, h] += len(numbers[r][h])
        dealt += count
    assert max(work.values()) - min(work.values()) <= 1
