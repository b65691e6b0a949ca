"""Which GPU a process takes, with a stand-in for CUDA: one that counts and remembers."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from longhaul.core.errors import RecipeError
from longhaul.parallel import world
from longhaul.parallel.layout import Place
from longhaul.parallel.world import device_of, meet

CUDA = torch.device("cuda")


class Cuda:
    """Stands for `torch.cuda` in one process."""

    def __init__(self, seen: list[str]) -> None:
        self.seen, self.meant = seen, 0

    def set_device(self, number: int) -> None:
        assert number < len(self.seen)
        self.meant = number


@pytest.fixture
def process(monkeypatch):
    """Have this process see GPUs of these names."""

    def sees(*names: str) -> Cuda:
        cuda = Cuda(list(names))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cuda.seen))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: cuda.meant)
        monkeypatch.setattr(torch.cuda, "set_device", cuda.set_device)
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda device: SimpleNamespace(uuid=cuda.seen[device.index]),
        )
        return cuda

    return sees


def test_each_rank_of_a_host_takes_the_gpu_of_its_number(process) -> None:
    for local in range(4):
        cuda = process("a", "b", "c", "d")
        assert device_of(Place(local, 4, local, 4), CUDA) == torch.device("cuda", local)
        assert cuda.meant == local


@pytest.mark.parametrize(("names", "number"), [(("d",), 0), (("g", "h"), 1)])
def test_a_rank_that_was_given_its_own_takes_one_of_those(process, names, number: int) -> None:
    """`srun --gpus-per-task=1`: local rank 3 sees one GPU, and its number is 0."""
    cuda = process(*names)
    assert device_of(Place(3, 4, 3, 4), CUDA) == torch.device("cuda", number)
    assert cuda.meant == number


def test_a_rank_that_sees_none_says_so(process) -> None:
    process()
    with pytest.raises(RecipeError, match="local rank 3 sees no GPU"):
        device_of(Place(3, 4, 3, 4), CUDA)


@pytest.fixture
def meeting(monkeypatch):
    """Ranks that meet one after the other in this process; what each told torch."""
    store, told = HashStore(), []
    monkeypatch.setattr(world, "_store", lambda place, timeout: store)
    monkeypatch.setattr(world, "_answers", lambda address: True)
    monkeypatch.setattr(world, "_has_met", False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(
        world.dist, "init_process_group", lambda backend, **more: told.append((backend, more))
    )
    monkeypatch.setattr(world.dist, "new_group", lambda **more: "control")
    monkeypatch.setattr(world, "Control", lambda group: group)
    return told


def meets(rank: int, wanted: str = "") -> None:
    place = Place(rank, 2, rank, 2)

    def own(name: str) -> torch.device:
        device = torch.device(name)
        return device_of(place, device) if device.type == "cuda" else device

    meet(place, wanted=wanted, own=own)


def test_every_rank_claims_its_gpu_before_torch_is_told_of_it(process, meeting) -> None:
    cuda = process("a", "b")
    meets(0, "cuda")
    meets(1)  # rank 0's recipe says which kind it is
    assert [backend for backend, _ in meeting] == ["cpu:gloo,cuda:nccl"] * 2
    devices = [more["device_id"] for _, more in meeting]
    assert devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert cuda.meant == 1


def test_two_ranks_on_one_gpu_are_told_apart_from_one_each(process, meeting) -> None:
    process("a")
    meets(0, "cuda")
    with pytest.raises(RecipeError, match=r"(?s)rank 1 .* the same GPU .*--gpus-per-task=1"):
        meets(1)
    process("b")
    meets(1)
    assert len(meeting) == 2


def test_where_ranks_train_on_the_cpu_no_gpu_is_touched(process, meeting, monkeypatch) -> None:
    process("a", "b")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    meets(0, "cpu")
    assert meeting[0][0] == "gloo"
    assert meeting[0][1]["device_id"] is None
