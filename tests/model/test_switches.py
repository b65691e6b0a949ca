"""Every switch of the model alone, and random pairs of them, keep what a run relies on."""

import copy
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor

from longhaul.config.model import ModelSection
from longhaul.config.model_combinations import model_problems
from longhaul.config.size import model_size
from longhaul.core.schedules import derive_key
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.model.tap import Tap

SHAPE: dict[str, object] = {"layers": 4, "heads": 4, "width": 32, "context": 16}
VOCAB, END_OF_TEXT = 23, 5

Forward = Callable[..., Tensor]

SWITCHES: dict[str, dict[str, object]] = {
    "kv_heads": {"kv_heads": 2},
    "mlp_width": {"mlp_width": 48},
    "embedding_width": {"embedding_width": 12},
    "vocab_multiple": {"vocab_multiple": 16},
    "learned": {"positions": "learned"},
    "no_positions": {"positions": "none"},
    "position_init": {"positions": "learned", "position_init": "sinusoidal"},
    "rotary_base": {"rotary_base": 100.0},
    "linear_scaling": {"rotary_scaling": "linear", "rotary_factor": 4.0},
    "llama3_scaling": {"rotary_scaling": "llama3", "rotary_original_context": 8},
    "llama3_turns": {
        "rotary_scaling": "llama3",
        "rotary_original_context": 8,
        "rotary_slow_turns": 0.1,
        "rotary_fast_turns": 0.5,
    },
    "yarn_scaling": {"rotary_scaling": "yarn", "rotary_original_context": 256},
    "attention_factor": {
        "rotary_scaling": "yarn",
        "rotary_original_context": 256,
        "rotary_attention_factor": 1.5,
    },
    "ramp_within_pairs": {
        "rotary_scaling": "yarn",
        "rotary_original_context": 256,
        "rotary_truncate": False,
    },
    "rotary_share": {"rotary_share": 0.5},
    "layernorm": {"norm": "layernorm"},
    "norm_eps": {"norm_eps": 0.5},
    "norm_scale": {"norm_scale": False},
    "parallel_residual": {"parallel_residual": True},
    "post_norm": {"norm_placement": "post"},
    "embedding_norm": {"embedding_norm": True},
    "attention_out_norm": {"attention_out_norm": True},
    "mlp_out_norm": {"mlp_out_norm": True},
    "mlp_inner_norm": {"mlp_inner_norm": True},
    "no_qk_norm": {"qk_norm": False},
    "head_width": {"head_width": 12},
    "qk_norm_scale": {"qk_norm_scale": True},
    "qkv_bias": {"qkv_bias": True},
    "score_scale": {"score_scale": 0.6},
    "score_softcap": {"score_softcap": 0.7},
    "split_score_scale": {"split_score_scale": True},
    "attention_head_scale": {"attention_head_scale": True},
    "window": {"window": 5},
    "window_full_every": {"window": 5, "window_full_every": 2},
    "window_stages": {"window": 16, "window_stages": ({"from_step": 0, "tokens": 3},)},
    "document_mask": {"document_mask": True},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu2"},
    "geglu": {"activation": "geglu"},
    "geglu_tanh": {"activation": "geglu_tanh"},
    "swiglu": {"activation": "swiglu"},
    "bias": {"bias": True},
    "tied_head": {"tied_head": True},
    "residual_clamp": {"residual_clamp": 0.3},
    "embedding_scale": {"embedding_scale": 5.0},
    "token_smear": {"token_smear": True},
    "bigram_rows": {"bigram_rows": 64},
    "logit_softcap": {"logit_softcap": 5.0},
    "ahead_stages": {"ahead_stages": ({"from_step": 0, "weights": (0.5, 0.25)},)},
    "z_loss": {"z_loss": 0.01},
    "value_residual": {"value_residual": True},
    "value_embeddings": {"value_embeddings": 1},
    "input_mix": {"input_mix": True},
    "unet_skips": {"unet_skips": True},
    "unet_skips_odd": {"unet_skips": True, "layers": 5},
    "dropout": {"dropout": 0.2},
    "attention_dropout": {"attention_dropout": 0.2},
    "embedding_dropout": {"embedding_dropout": 0.2},
    "init_std": {"init_std": 0.05},
    "zero_projections": {"zero_projections": True},
    "zero_head": {"zero_head": True},
}

WITHOUT_EFFECT_ON_A_FILLED_MODEL = {
    "vocab_multiple", "split_score_scale", "window_stages", "ahead_stages", "init_std",
    "zero_projections", "zero_head",
}  # fmt: skip
"""Switches of the start, of later steps, of gradients alone, or that give the same numbers on
purpose."""

OF_THE_START = {"init_std", "zero_projections", "zero_head", "unet_skips_odd"}
"""Switches that change how other weights start, as they say, or the number of layers."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small lose more by handing work to threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_pairs(number: int) -> dict[str, dict[str, object]]:
    """Pairs that can work together, always the same ones."""
    draw, pairs = random.Random(3), {}
    while len(pairs) < number:
        one, other = draw.sample(sorted(SWITCHES), 2)
        both = SWITCHES[one] | SWITCHES[other]
        undone = any(both[name] != value for name, value in SWITCHES[one].items())
        if not undone and not list(model_problems(section(both))):
            pairs[f"{one}+{other}"] = both
    return pairs


def section(changes: dict[str, object]) -> ModelSection:
    return ModelSection.model_validate(SHAPE | changes)


def shallow(changes: dict[str, object]) -> dict[str, object]:
    """Two layers, or three where an odd number is meant: each layer is compiled for itself."""
    return changes | {"layers": 2 + section(changes).layers % 2}


PAIRS = random_pairs(25)
CASES = SWITCHES | PAIRS
every_case = pytest.mark.parametrize(
    "changes",
    [*SWITCHES.values(), *(pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS.values())],
    ids=CASES,
)
TEAMS: dict[str, dict[str, object]] = {
    names: {key: value for name in names.split() for key, value in SWITCHES[name].items()}
    for names in (
        "kv_heads mlp_width embedding_width vocab_multiple learned",
        "no_positions layernorm norm_eps bias head_width score_softcap score_scale",
        "position_init post_norm embedding_norm attention_out_norm mlp_inner_norm",
        "linear_scaling no_qk_norm split_score_scale attention_head_scale window",
        "llama3_scaling window_full_every document_mask gelu_tanh norm_scale",
        "rotary_base window_stages relu tied_head residual_clamp embedding_scale qk_norm_scale",
        "relu2 token_smear bigram_rows logit_softcap z_loss value_residual qkv_bias",
        "geglu ahead_stages value_embeddings input_mix unet_skips",
        "swiglu dropout attention_dropout embedding_dropout init_std",
        "unet_skips_odd zero_projections zero_head geglu_tanh mlp_out_norm",
        "llama3_turns rotary_share parallel_residual",
        "yarn_scaling attention_factor ramp_within_pairs",
    )
}
"""Every switch once, with others that leave it its effect."""
# Capture takes seconds: one team here; all others, each switch alone and all pairs are slow tests.
every_captured_case = pytest.mark.parametrize(
    "changes",
    [
        *[*TEAMS.values()][:1],
        *(pytest.param(changes, marks=pytest.mark.slow) for changes in [*TEAMS.values()][1:]),
        *(pytest.param(changes, marks=pytest.mark.slow) for changes in CASES.values()),
    ],
    ids=[*TEAMS, *CASES],
)
every_switch = pytest.mark.parametrize("name", SWITCHES)


def made(changes: dict[str, object], seed: int = 0) -> GPT:
    return build(section(changes), VOCAB, seed, end_of_text=END_OF_TEXT)


def filled(changes: dict[str, object]) -> GPT:
    """Every weight random, so that no term hides behind a 0 or a 1; by name, so that models with
    and without a switch share what both have."""
    model = made(changes)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(derive_key(0, "filled", name))
            weight.copy_(torch.empty_like(weight).normal_(0.0, 0.3, generator=generator))
    return model


def some_tokens(seed: int = 1) -> Tensor:
    """Two documents in each sequence."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(VOCAB, (3, 16), generator=generator)
    tokens_BT[:, 6] = END_OF_TEXT
    return tokens_BT


def next_of(tokens_BT: Tensor) -> Tensor:
    return tokens_BT.roll(-1, dims=1)


def optimizer_of(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def one_step(model: GPT, optimizer: torch.optim.Optimizer, number: int) -> None:
    torch.manual_seed(number)
    tokens_BT = some_tokens()
    optimizer.zero_grad()
    (model(tokens_BT, next_of(tokens_BT)) / tokens_BT.numel()).backward()
    optimizer.step()


@torch.no_grad()
def plain_loss(model: GPT) -> float:
    model.eval()
    loss = model(some_tokens(), next_of(some_tokens())).item()
    model.train()
    return loss


def test_every_switch_of_the_section_is_tried_here() -> None:
    tried = set(SHAPE) | {name for changes in SWITCHES.values() for name in changes}
    assert tried | {"rotary_factor"} == set(ModelSection.model_fields)


def test_every_switch_is_in_a_team_and_has_its_effect_there() -> None:
    assert sorted(" ".join(TEAMS).split()) == sorted(SWITCHES)
    for names, changes in TEAMS.items():
        for name in names.split():
            assert changes.items() >= SWITCHES[name].items(), f"{name} in {names}"
        assert not list(model_problems(section(changes))), names


@every_case
def test_it_trains_and_every_weight_takes_part(changes: dict[str, object]) -> None:
    model = made(changes)
    optimizer, moved = optimizer_of(model), set()
    losses = [plain_loss(model)]
    for number in range(8):
        one_step(model, optimizer, number)
        if number % 2 == 1:
            losses.append(plain_loss(model))
        for name, weight in model.named_parameters():
            assert weight.grad is not None, name
            assert bool(weight.grad.isfinite().all()), name
            if weight.grad.any():
                moved.add(name)
        # The lowest on the way: at this rate a step may also lead astray, on one processor or
        # another.
        learned = min(losses) < 0.97 * losses[0]
        if learned and moved == {name for name, _ in model.named_parameters()}:
            return
    assert learned
    assert moved == {name for name, _ in model.named_parameters()}


@every_case
def test_a_step_after_a_round_trip_has_the_same_bits(changes: dict[str, object]) -> None:
    model = made(changes)
    optimizer = optimizer_of(model)
    for number in range(2):
        one_step(model, optimizer, number)
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict())
    one_step(model, optimizer, 2)
    other = made(changes, seed=7)
    other_optimizer = optimizer_of(other)
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(moments)
    one_step(other, other_optimizer, 2)
    resumed = dict(other.named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(weight, resumed[name]), name


@every_case
@torch.no_grad()
def test_no_position_sees_the_tokens_after_it(changes: dict[str, object]) -> None:
    model, tokens_BT = filled(changes).eval(), some_tokens()
    before = model(tokens_BT)
    for changed, new in ((1, 0), (8, END_OF_TEXT), (15, 3)):
        other_BT = tokens_BT.clone()
        other_BT[:, changed] = torch.where(other_BT[:, changed] == new, 4, new)
        after = model(other_BT)
        torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=1e-5, atol=1e-5)
        assert (before[:, changed:] - after[:, changed:]).abs().max() > 1e-4


@every_case
@torch.no_grad()
def test_token_by_token_with_a_cache_gives_the_same_logits(changes: dict[str, object]) -> None:
    model, tokens_BT = filled(changes).eval(), some_tokens()
    whole, cache = model(tokens_BT), model.new_cache(3)
    parts = [
        model(part_BT, cache=cache) for part_BT in tokens_BT.split([5, 1, 1, 1, 3, 1, 4], dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@every_case
def test_parameters_are_counted_without_the_model(changes: dict[str, object]) -> None:
    model = made(changes)
    counted = sum(weight.numel() for weight in model.parameters())
    assert model_size(section(changes), VOCAB).total == counted


@pytest.mark.parametrize("name", sorted(SWITCHES.keys() - OF_THE_START))
def test_a_switch_leaves_the_start_of_other_weights_alone(name: str) -> None:
    plain = dict(made({}).named_parameters())
    for its_name, weight in made(SWITCHES[name]).named_parameters():
        if its_name in plain and plain[its_name].shape == weight.shape:
            assert torch.equal(plain[its_name], weight), its_name


@every_switch
@torch.no_grad()
def test_a_switch_changes_the_loss_in_training(name: str) -> None:
    losses = []
    for changes in ({}, SWITCHES[name]):
        torch.manual_seed(0)
        losses.append(filled(changes)(some_tokens(), next_of(some_tokens())).item())
    same = abs(losses[0] - losses[1]) <= 3e-6 * losses[0]
    assert same == (name in WITHOUT_EFFECT_ON_A_FILLED_MODEL)


def train_without_updates(model: GPT, forward: Forward) -> list[Tensor]:
    """A step, one that reads gauges (never compiled: `TrainingStep`), a step: losses, gauges,
    and the gradients of all three, each as a share of its largest element."""
    device = model.tokens.weight.device
    tap, losses = Tap(model.gauges, model.settings.layers, device), []
    for number in range(3):
        torch.manual_seed(number)
        tokens_BT = some_tokens(number).to(device)
        given = {"window": model.settings.window_at(number)}
        if number == 1:
            with tap.open_for_forward():
                loss = model(tokens_BT, next_of(tokens_BT), tap=tap, **given)
        else:
            loss = forward(tokens_BT, next_of(tokens_BT), **given)
        loss.backward()
        losses.append(loss.detach())
    gradients = [weight.grad for weight in model.parameters()]
    return [*losses, tap.drain(), *(gradient / gradient.abs().max() for gradient in gradients)]


def compare_with_compiled(changes: dict[str, object], backend: str, device: str = "cpu") -> None:
    torch.compiler.reset()
    eager, other = (filled(shallow(changes)).to(device) for _ in range(2))
    compiled = torch.compile(other, backend=backend, fullgraph=True, dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = train_without_updates(other, compiled)
    for one, another in zip(train_without_updates(eager, eager), found, strict=True):
        torch.testing.assert_close(another, one, rtol=1e-5, atol=1e-5)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Capture makes a million small objects; walking over them again and again takes a sixth of
    the time."""
    gc.disable()
    yield
    gc.enable()


@every_captured_case
@pytest.mark.usefixtures("no_collection")
def test_it_is_captured_whole_and_once_with_the_same_loss_and_gradients(
    changes: dict[str, object],
) -> None:
    """Forward and backward, all but the generation of code, which needs a C++ compiler: a graph
    break fails it, and so does a second capture for steps of the same shape."""
    compare_with_compiled(changes, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.skipif(
    not (torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++"))),
    reason="needs a C++ compiler, or a CUDA device",
)
@every_case
def test_generated_code_gives_the_same_loss_and_gradients(changes: dict[str, object]) -> None:
    # Dropout as torch draws it: by default generated code has random numbers of its own.
    with torch._inductor.config.patch(fallback_random=True):
        compare_with_compiled(changes, "inductor", "cuda" if torch.cuda.is_available() else "cpu")
