import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.config.train import PrecisionSection
from longhaul.model.initialise import build, to_number_format

BASE = {"layers": 2, "heads": 2, "width": 16, "context": 12}
FORMS = {
    "gpt2": {
        "positions": "learned", "norm": "layernorm", "bias": True, "tied_head": True,
        "qk_norm": False,
    },
    "modern": {},
    "yalm": {
        "norm": "layernorm", "bias": True, "embedding_norm": True, "embedding_width": 8,
        "activation": "geglu",
    },
    "speedrun": {
        "norm_scale": False, "value_residual": True, "value_embeddings": 1, "input_mix": True,
        "unet_skips": True, "logit_softcap": 15.0, "bigram_rows": 50, "vocab_multiple": 8,
    },
    "normformer": {
        "attention_out_norm": True, "mlp_inner_norm": True, "attention_head_scale": True,
        "norm_placement": "post",
    },
}  # fmt: skip


def made(form: str, dtype: torch.dtype | None, islands: bool = True):
    settings = ModelSection.model_validate(BASE | FORMS[form])
    model = build(settings, 21, seed=3)
    compute = {None: "float32", torch.bfloat16: "bf16_weights", torch.float16: "fp16_weights"}
    to_number_format(model, PrecisionSection(compute=compute[dtype], islands=islands))
    return model


def loss_of(model):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(21, (3, 13), generator=generator)
    return model(tokens[:, :-1], tokens[:, 1:]) / 36


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("islands", [True, False])
def test_a_half_model_gives_nearly_the_same_loss_and_gradients(form, dtype, islands):
    exact, half = made(form, None), made(form, dtype, islands)
    losses = loss_of(exact), loss_of(half)
    assert losses[1].dtype == torch.float32
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)
    for loss in losses:
        loss.backward()
    gradients = dict(exact.named_parameters())
    for name, weight in half.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.dtype == weight.dtype
        wanted = gradients[name].grad
        distance = torch.linalg.vector_norm(weight.grad.float() - wanted)
        assert distance <= 0.1 * torch.linalg.vector_norm(wanted) + 1e-3, name


@pytest.mark.parametrize("form", FORMS)
def test_islands_keep_the_stream_in_float32_and_the_products_in_half(form):
    model = made(form, torch.bfloat16, islands=True)
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, out: seen.append(("stream", out.dtype)))
        block.mlp.up.register_forward_hook(lambda _, given, out: seen.append(("mlp", out.dtype)))
    loss_of(model)
    assert set(seen) == {("stream", torch.float32), ("mlp", torch.bfloat16)}


def test_without_islands_everything_is_half():
    model = made("modern", torch.float16, islands=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    model.blocks[0].register_forward_hook(lambda _, given, out: dtypes.append(out.dtype))
    dtypes: list[torch.dtype] = []
    loss_of(model)
    assert dtypes == [torch.float16]


def test_a_small_step_of_the_stream_survives_only_on_an_island():
    # What YaLM's article is about: beside 256, bfloat16 cannot see 0.5.
    stream, step = torch.tensor(256.0), torch.tensor(0.5)
    assert (stream.bfloat16() + step.bfloat16()).item() == 256.0
    assert (stream + step.bfloat16()).item() == 256.5


@pytest.mark.parametrize("form", ["gpt2", "speedrun"])
def test_a_half_model_writes_token_by_token_what_it_writes_at_once(form):
    model = made(form, torch.bfloat16).eval()
    tokens = torch.randint(21, (1, 9), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(1)
    with torch.inference_mode():
        whole = model(tokens)
        parts = torch.cat([model(tokens[:, n : n + 1], cache=cache) for n in range(9)], dim=1)
    assert torch.allclose(whole.float(), parts.float(), atol=0.05, rtol=0.05)
