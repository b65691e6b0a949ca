"""A device without numbers: everything of a GPU but the results.

It is PyTorch's Python-only device, and its tensors are fake: they have a shape, a dtype and a
device, no values. The host's tensors are real. So whatever waits for a number of the device, mixes
it with the host, or means another device than the one it trains on is found without a GPU.

Two devices of this kind are there, as on a host with two GPUs; the cases use the second, so that
what names no device goes wrong. What a case may not show: kernels, streams, real memory.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

KIND, DEVICES, OWN = "fakegpu", 2, 1
_aten = torch.ops.aten


class HostRead(AssertionError):
    """The host waits for the device here."""


class _Meant(threading.local):
    """The device that a thread means: of a new one device 0, as with CUDA."""

    number = 0
    stream: Any = None
    """None: the device's own."""


class FakeModule:
    """What torch asks of `torch.fakegpu`, and what `torch.cuda` would answer."""

    def __init__(self) -> None:
        self._meant = _Meant()
        self.asked: list[tuple[str, int]] = []
        """What was asked without a tensor that says of which device, and of which it was."""
        self._states = [torch.full((16,), number, dtype=torch.uint8) for number in range(DEVICES)]
        module = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self._recorded = False

            def record(self, stream: Any = None) -> None:
                self._recorded = True
                module._ask("record", stream)

            def query(self) -> bool:
                assert self._recorded
                module._ask("query", None)
                return True

            def synchronize(self) -> None:
                assert self._recorded
                module._ask("wait", None)

            def elapsed_time(self, later: "Event") -> float:
                return 1.0

        class Device:
            def __init__(self, which: Any) -> None:
                self._number = module._number(which)

            def __enter__(self) -> None:
                self._before, module._meant.number = module._meant.number, self._number

            def __exit__(self, *error: object) -> None:
                module._meant.number = self._before

        class Stream:
            """Of the device itself, or beside it."""

            def __init__(self, which: Any = None, beside: bool = True) -> None:
                self.number, self.beside = module._number(which), beside

            def wait_stream(self, other: "Stream") -> None:
                module._ask("beside waits" if self.beside else "waits", self)
                assert other.number == self.number
                assert other.beside != self.beside

        self.Event, self.device, self.Stream = Event, Device, Stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._meant.stream = self._meant.stream, stream
        try:
            yield
        finally:
            self._meant.stream = before

    def _number(self, which: Any) -> int:
        if isinstance(which, int):
            return which
        if isinstance(which, self.Stream):
            return which.number
        index = None if which is None else torch.device(which).index
        return self._meant.number if index is None else index

    def _ask(self, what: str, which: Any) -> None:
        self.asked.append((what, self._number(which)))

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return self._meant.number

    def set_device(self, which: Any) -> None:
        self._meant.number = self._number(which)

    def current_stream(self, which: Any = None) -> Any:
        return self._meant.stream or self.Stream(which, beside=False)

    def synchronize(self, which: Any = None) -> None:
        self._ask("wait", which)

    def manual_seed(self, key: int) -> None:
        self._ask("seed", None)

    def manual_seed_all(self, key: int) -> None:
        pass

    def get_rng_state(self, which: Any = None) -> torch.Tensor:
        self._ask("state", which)
        return self._states[self._number(which)].clone()

    def set_rng_state(self, state: torch.Tensor, which: Any = None) -> None:
        self._ask("state", which)
        self._states[self._number(which)] = state.clone()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class FakeDevice(TorchDispatchMode):
    """Computes on fake tensors what concerns the device, and the host's own work as it is.

    A copy between host and device waits unless it is `non_blocking` and the host's side is
    page-locked; reading a number waits always. Both raise `HostRead`, but for `allowed`.

    Args:
        module: of the device.
    """

    def __init__(self, module: FakeModule) -> None:
        super().__init__()
        self.module = module
        self.device = torch.device(KIND, OWN)
        self.allowed: tuple[str, ...] = ()
        """Functions of longhaul (`train.drain:Drain.ready`) in which the host may wait."""
        self.waited: set[str] = set()
        """Those in which it did."""
        self.pinned_on: list[str] = []
        """Threads that copied a tensor into page-locked memory."""
        self._building = False
        self._before: list[bool] = []
        self._found: Exception | None = None
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._pinned: dict[int, torch.UntypedStorage] = {}

    def __enter__(self) -> "FakeDevice":
        # A list becomes a tensor of the host, which is then copied, as CUDA does it too.
        self._before.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._before.pop())
        super().__exit__(*error)
        self._raise_what_was_found()

    @contextmanager
    def building(self) -> Iterator[None]:
        """Before the first step the host may wait as it likes."""
        self._building = True
        try:
            yield
        finally:
            self._building = False

    def others_asked(self) -> list[tuple[str, int]]:
        """What concerned another device than the case's own."""
        return [(what, number) for what, number in self.module.asked if number != OWN]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() == -1:
            self._raise_what_was_found()
            return self._done(func, args, dict(kwargs or {}))
        try:
            return self._done(func, args, dict(kwargs or {}))
        except Exception as error:  # noqa: BLE001 (raised once the pass is over)
            # In a backward pass a device of Python's ends the process if an error goes through it.
            self._found = self._found or error
            if func in (_aten._local_scalar_dense.default, *_COMPARES):
                return _NUMBERS.get(args[0].dtype, 0.0)
            return next(filter(_is_tensor, tree_leaves((args, kwargs))), 0.0)

    def _raise_what_was_found(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            raise found

    def _done(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.pop("pin_memory", False):
            return self._pin(func(*args, **kwargs))
        if func in (_aten.pin_memory.default, _aten._pin_memory.default):
            self.pinned_on.append(threading.current_thread().name)
            return self._pin(args[0].clone())
        if func is _aten.is_pinned.default:
            return self._is_pinned(args[0])
        wanted = kwargs.get("device")
        goes_there = wanted is not None and torch.device(wanted).type == KIND
        if not goes_there and not any(map(_is_there, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and func.namespace == "aten":
            with self:  # there operations come that elsewhere come as their parts
                done = func.decompose(*args, **kwargs)
            if done is not NotImplemented:
                return done
        is_move = func is _aten._to_copy.default and wanted is not None
        if is_move and _is_there(args[0]) != goes_there:
            return self._new_copy(args[0], **kwargs)
        if func is _aten.copy_.default and _is_there(args[0]) != _is_there(args[1]):
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            return self._copy_over(args[0], args[1], waits)
        if func is _aten._local_scalar_dense.default:
            self._wait("reads a number of the device")
            return _NUMBERS.get(args[0].dtype, 0.0)
        if func in _COMPARES:
            self._wait("compares tensors of the device")
            return True
        if func.overloadpacket in _NO_META:
            assert {it.device for it in tree_leaves((args, kwargs)) if _is_tensor(it)} == {
                self.device
            }
            return None
        with self._fake:
            return tree_map_only(torch.Tensor, _real_on_host, func(*args, **kwargs))

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return tensor

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return not _is_there(tensor) and tensor.untyped_storage().data_ptr() in self._pinned

    def _new_copy(
        self, source: torch.Tensor, device: Any, dtype: Any = None, non_blocking: bool = False,
        **more: Any,
    ) -> torch.Tensor:  # fmt: skip
        dtype = dtype or source.dtype
        if torch.device(device).type == KIND:
            if not (non_blocking and self._is_pinned(source)):
                self._wait("copies a tensor to the device")
            with self._fake:
                return torch.empty_strided(
                    source.shape, source.stride(), dtype=dtype, device=device
                )
        self._wait("copies a tensor to the host")
        return torch.zeros(source.shape, dtype=dtype)

    def _copy_over(self, target: torch.Tensor, source: torch.Tensor, waits: bool) -> torch.Tensor:
        to_host = _is_there(source)
        if waits or not self._is_pinned(target if to_host else source):
            self._wait(f"copies a tensor to the {'host' if to_host else 'device'}")
        if to_host and self.module.current_stream().beside:
            self.module._ask("beside copies", None)
        assert source.expand_as(target).shape == target.shape
        return target.zero_() if to_host else target

    def _wait(self, what: str) -> None:
        place = "tests" if self._building else _in_longhaul()
        if not self._building and place not in self.allowed:
            raise HostRead(f"{place} {what}, and the host waits for that")
        self.waited.add(place)


_NUMBERS = {torch.bool: False, torch.int64: 1, torch.float32: 1.0}
"""What the device answers where it may be asked."""


_COMPARES = (_aten.equal.default, _aten.allclose.default)
_NO_META = (_aten._fused_sgd_,)
"""Of these torch has nothing that computes shapes; they work in place."""


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_there(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == KIND


def _real_on_host(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
        return tensor
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _in_longhaul() -> str:
    """`module:function` of the innermost frame of longhaul."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("longhaul."):
            # From Python 3.12 on a comprehension is no function of its own.
            function = frame.f_code.co_qualname.removesuffix(".<locals>.<dictcomp>")
            return f"{name.removeprefix('longhaul.')}:{function}"
        frame = frame.f_back
    return "the test"


_TO_LOWER = (
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "linear", "matmul", "mm", "mv",
    "scaled_dot_product_attention",
)  # fmt: skip
_TO_FLOAT32 = (
    "cumsum", "exp", "layer_norm", "log", "log_softmax.int", "nll_loss", "pow.Tensor_Scalar",
    "prod", "rsqrt", "softmax.int", "softplus", "sum", "sum.dim_IntList",
)  # fmt: skip


def _teach_autocast() -> list[torch.library.Library]:
    """What autocast does on CUDA (torch.amp, op reference): products in few bits, sums in 32."""
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    aten = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def teach(name: str, low: bool) -> None:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(_aten, packet), overload or "default")

        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype(KIND) if low else torch.float32

            def cast(tensor: torch.Tensor) -> torch.Tensor:
                is_one = tensor.is_floating_point() and _is_there(tensor)
                return tensor.to(dtype) if is_one else tensor

            with torch._C._ExcludeDispatchKeyGuard(off):
                args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
                return operation(*args, **kwargs)

        aten.impl(operation, run)

    for name in _TO_LOWER:
        teach(name, low=True)
    for name in _TO_FLOAT32:
        teach(name, low=False)
    return [others, aten]


@pytest.fixture(scope="session")
def registered() -> Iterator[FakeModule]:
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} has no device that is made of Python alone")
    module = FakeModule()
    backend_registration._setup_privateuseone_for_python_backend(KIND, backend_module=module)
    kept = _teach_autocast()
    # The engine has a thread for each device, and of this kind it counts one.
    with torch.autograd.set_multithreading_enabled(False):
        yield module
    del kept


@pytest.fixture
def fake(registered: FakeModule, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """In force until the test ends; this thread means the device that the case trains on."""
    # As CUDA, it has kernels that clip, update and hold back in one.
    monkeypatch.setattr("longhaul.optim.optimizer.FUSED_DEVICES", ("cpu", KIND))
    registered.asked.clear()
    registered.set_device(OWN)
    torch.set_num_threads(1)
    with FakeDevice(registered) as device:
        yield device
    assert device.others_asked() == []
