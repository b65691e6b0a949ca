"""Compiles what the step is fused into for one kind of GPU, without one: a number such as 80 (sm_80).

Torch's compiler is told of a device by stand-ins; Triton and NVIDIA's assembler need none. Prints
for each kernel what its PTX is for.
"""
# ruff: noqa

import sys, types, torch, re, functools, contextlib
from unittest import mock
from collections import namedtuple

CC = int(sys.argv[1])
major, minor = divmod(CC, 10)
Props = types.SimpleNamespace(
    name="none",
    major=major,
    minor=minor,
    multi_processor_count=108,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 << 30,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=166912,
    shared_memory_per_multiprocessor=167936,
    gcnArchName="",
    uuid="x",
    L2_cache_size=40 << 20,
)
import torch._dynamo.device_interface as di
import torch._inductor.codecache as cc
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode

I = di.CudaInterface
patches = [
    mock.patch.object(torch.cuda, "is_available", lambda: True),
    mock.patch.object(torch.cuda, "device_count", lambda: 1),
    mock.patch.object(torch.cuda, "current_device", lambda: 0),
    mock.patch.object(torch.cuda, "_lazy_init", lambda: None),
    mock.patch.object(torch.cuda, "get_device_properties", lambda d=None: Props),
    mock.patch.object(torch.cuda, "get_device_capability", lambda d=None: (major, minor)),
    mock.patch.object(I.Worker, "get_device_properties", staticmethod(lambda d=None: Props)),
    mock.patch.object(I.Worker, "current_device", staticmethod(lambda: 0)),
    mock.patch.object(I, "get_compute_capability", staticmethod(lambda d=None: CC)),
    mock.patch.object(I, "is_available", staticmethod(lambda: True)),
    mock.patch.object(I, "is_triton_capable", staticmethod(lambda d=None: True)),
    mock.patch.object(I, "current_device", staticmethod(lambda: 0)),
    mock.patch.object(I, "set_device", staticmethod(lambda d=None: None)),
    mock.patch.object(I, "get_device_properties", staticmethod(lambda d=None: Props)),
    mock.patch.object(
        torch.cuda, "get_rng_state", lambda d=None: torch.zeros(16, dtype=torch.uint8)
    ),
    mock.patch.object(torch.cuda, "set_rng_state", lambda *a, **k: None),
    mock.patch("torch._inductor.fx_passes.joint_graph.lazy_init", lambda *a, **k: None),
    mock.patch("torch._inductor.fx_passes.post_grad.lazy_init", lambda *a, **k: None),
    mock.patch.object(torch.cuda, "_exchange_device", lambda d: 0),
    mock.patch.object(torch.cuda, "_maybe_exchange_device", lambda d: 0),
    mock.patch.object(torch.cuda._DeviceGuard, "__enter__", lambda s: None),
    mock.patch.object(torch.cuda._DeviceGuard, "__exit__", lambda s, *a: None),
    mock.patch.object(torch.cuda.device, "__enter__", lambda s: None),
    mock.patch.object(torch.cuda.device, "__exit__", lambda s, *a: None),
    mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu", lambda: None),
    mock.patch.object(torch.cuda, "set_device", lambda d: None),
    mock.patch.object(torch.cuda, "synchronize", lambda d=None: None),
    mock.patch.object(torch.cuda, "is_bf16_supported", lambda *a, **k: True),
]
import triton
from triton.backends.compiler import GPUTarget


class Drv:
    target = GPUTarget("cuda", CC, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        return torch.device("cuda", 0)

    def get_current_stream(self, d):
        return 0

    def get_device_interface(self):
        return torch.cuda

    @staticmethod
    def is_active():
        return True


triton.runtime.driver.set_active(Drv())


def ptx_of(src):
    from torch._inductor.codecache import PyCodeCache

    for name, body in re.findall(
        r"async_compile\.triton\(\s*['\"](\w+)['\"],\s*'''(.*?)'''", src, flags=re.S
    ):
        mod = PyCodeCache.load(body)
        k = getattr(mod, name)
        cfg = k.configs[0]
        meta = k.triton_meta
        sig = dict(meta["signature"])
        con = dict(meta.get("constants", {}))
        for a, v in cfg.kwargs.items():
            if a in k.fn.arg_names:
                sig[a] = "constexpr"
                con[a] = v
        con = {(k.fn.arg_names.index(a),) if isinstance(a, str) else a: v for a, v in con.items()}
        src2 = triton.compiler.ASTSource(k.fn, sig, con, meta["configs"][0])
        c = triton.compile(
            src2,
            target=Drv.target,
            options={"num_warps": cfg.num_warps, "num_stages": cfg.num_stages},
        )
        print(
            name,
            re.findall(r"\.target (\w+)", c.asm["ptx"]),
            len(c.asm["ptx"]),
            "cubin",
            len(c.asm.get("cubin", b"")),
        )


if __name__ == "__main__":
    import torch._inductor.graph as g
    from torch.fx.experimental.proxy_tensor import make_fx
    from longhaul.model.layers import softcapped
    from longhaul.model.layers import unit_rms

    class Stop(Exception):
        pass

    def passes(x):
        return softcapped(unit_rms(x, 1e-6).to(torch.bfloat16), 15.0).float().softmax(-1).sum(-1)

    sources = []
    codegen = g.GraphLowering.codegen

    def keep(graph, *given, **named):
        made = codegen(graph, *given, **named)
        sources.append(made[0].value)
        raise Stop

    with contextlib.ExitStack() as leaving, FakeTensorMode(allow_non_fake_inputs=True):
        for patch in patches:
            leaving.enter_context(patch)
        leaving.enter_context(mock.patch.object(g.GraphLowering, "codegen", keep))
        x = torch.empty(4, 64, 512, device="cuda")
        try:
            compile_fx(make_fx(passes)(x), [x])
        except Exception:
            if not sources:
                raise
        for source in sources:
            ptx_of(source)
