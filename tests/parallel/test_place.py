import pytest

from longhaul.core.errors import UsageError
from longhaul.parallel.place import Place, find_place

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}


def test_the_place_is_the_one_of_torchruns_environment():
    assert find_place(TORCHRUN) == Place(rank=5, size=8, local_rank=1, local_size=4)


def test_without_an_environment_or_in_a_world_of_one_there_is_one_process():
    assert find_place({}) is None
    assert find_place(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}) is None


def test_half_a_place_is_refused_by_name():
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT is not set"):
        find_place({"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="'two'"):
        find_place(TORCHRUN | {"WORLD_SIZE": "two"})
    with pytest.raises(UsageError, match="rank 9 of 8"):
        find_place(TORCHRUN | {"RANK": "9"})
