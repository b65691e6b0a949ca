"""A model that no class of transformers has: the code its folder brings computes there what the
model computes here, however it is asked; and nobody but transformers runs that code."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from interop.hf.conftest import CONTEXT, SHAPES, TEXT, exported, tokens_of
from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError
from longhaul.interop.hf.agreement import compare, load_theirs
from longhaul.interop.hf.folder import their_tensors
from longhaul.interop.hf.own import CODE, OWN
from longhaul.interop.hf.recipe import recipe_for
from longhaul.interop.hf.weights import PublishedWeights
from longhaul.model import masks
from longhaul.model.masks import make_sight
from longhaul.train.sampling import sample_tokens
from model.test_switches import SHAPE, SWITCHES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
dynamic_module_utils = pytest.importorskip("transformers.dynamic_module_utils")

ODD = SHAPES["longhaul"]
END = 256  # of bytes
GREEDY = {"do_sample": False, "pad_token_id": END}


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where transformers copies code to before it runs it: not among the tester's."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "copies"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "copies"


def opened(folder: Path, **more: object) -> torch.nn.Module:
    """As a user opens it."""
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, trust_remote_code=True, **more).eval()


@torch.no_grad()
def test_every_way_to_ask_gives_our_logits(written):
    made = exported(ODD | {"vocab_multiple": 64})
    theirs, tokens_BT = opened(written(made)), tokens_of(made)
    tokens_BT[0, 6] = END  # another document begins
    ours_BTV = made.model(tokens_BT)
    assert torch.equal(theirs(tokens_BT).logits, ours_BTV)
    targets_BT = tokens_BT.clone()
    targets_BT[0, 3:9] = -100
    answer = theirs(tokens_BT, torch.ones_like(tokens_BT), labels=targets_BT)
    wanted = functional.cross_entropy(ours_BTV[:, :-1].flatten(0, 1), targets_BT[:, 1:].flatten())
    assert float(answer.loss) == pytest.approx(float(wanted), abs=1e-6)
    loss, logits_BTV = theirs(tokens_BT, labels=targets_BT, return_dict=False)
    assert torch.equal(loss, answer.loss)
    assert torch.equal(logits_BTV, ours_BTV)
    with pytest.raises(Exception, match="does not fit the model's context"):
        theirs(torch.zeros(1, CONTEXT + 1, dtype=torch.int64))
    with pytest.raises(TypeError, match="position_ids"):  # packed texts would run together
        theirs(tokens_BT, position_ids=tokens_BT)


@torch.no_grad()
def test_padding_at_either_end_changes_no_logits(written):
    made = exported(ODD)
    theirs, tokens_BT = opened(written(made)), tokens_of(made)
    wanted_BTV = made.model(tokens_BT[:, :9])
    padded_BT = torch.full((2, 14), 7)
    padded_BT[0, 5:], padded_BT[1, :9] = tokens_BT[0, :9], tokens_BT[1, :9]
    mask_BT = torch.zeros_like(padded_BT)
    mask_BT[0, 5:], mask_BT[1, :9] = 1, 1
    found_BTV = theirs(padded_BT, attention_mask=mask_BT).logits
    torch.testing.assert_close(found_BTV[0, 5:], wanted_BTV[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found_BTV[1, :9], wanted_BTV[1], atol=1e-5, rtol=0)
    mask_BT[0, 8] = 0
    with pytest.raises(ValueError, match="within a sequence"):
        theirs(padded_BT, attention_mask=mask_BT)


def test_generate_writes_what_sample_writes_beyond_the_context_too(written):
    made = exported(ODD)
    theirs, prompts = opened(written(made)), [TEXT.encode()[:10], TEXT.encode()[20:25]]
    most = 2 * CONTEXT
    wanted = [
        list(sample_tokens(
            made.model, prompt, most_tokens=most, context=CONTEXT, temperature=0.0, top_k=0,
            seed=0, device=torch.device("cpu"), end_of_text=END,
        ))
        for prompt in prompts
    ]  # fmt: skip
    asked_BT, mask_BT = torch.full((2, 10), END), torch.zeros(2, 10, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        asked_BT[row, -len(prompt) :] = torch.tensor(list(prompt))
        mask_BT[row, -len(prompt) :] = 1
    options = GREEDY | {"attention_mask": mask_BT, "max_new_tokens": most}
    answers = theirs.generate(asked_BT, **options)[:, 10:].tolist()
    for answer, own in zip(answers, wanted, strict=True):
        assert len(own) > CONTEXT  # or the property would not be seen
        assert answer[: len(own)] == own
        assert set(answer[len(own) :]) <= {END}
    again = theirs.generate(asked_BT, **options, use_cache=True)[:, 10:].tolist()
    assert again == answers


def test_saved_by_transformers_it_comes_back_and_is_imported(written, tmp_path):
    made = exported(ODD | {"tied_head": True, "embedding_width": None, "zero_head": False})
    folder, again = written(made), tmp_path / "again"
    opened(folder).save_pretrained(again)
    (again / "tokenizer.json").write_bytes(made.tokenizer.content())
    tokens_BT = tokens_of(made)
    with torch.no_grad():
        assert torch.equal(opened(again)(tokens_BT).logits, made.model(tokens_BT))
    assert (again / CODE.name).read_bytes() == CODE.read_bytes()
    first, second = (PublishedWeights(place) for place in (folder, again))
    for name, _ in their_tensors(made):
        assert torch.equal(first.read(name), second.read(name))
    (tmp_path / "own.toml").write_text(recipe_for(again, "own")[1])
    assert load_recipe(str(tmp_path / "own.toml")).recipe.model == made.recipe.model


def test_a_new_one_is_filled_as_a_run_begins(written):
    config = transformers.AutoConfig.from_pretrained(written(exported(ODD)), trust_remote_code=True)
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        auto = transformers.AutoModelForCausalLM
        made.append(auto.from_config(config, trust_remote_code=True))
    first, same, other = (dict(model.named_parameters()) for model in made)
    name = "model.blocks.0.mlp.up.weight"
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])
    assert float(first[name].detach().std()) == pytest.approx(0.02, rel=0.2)
    loss = made[0](torch.arange(20)[None], labels=torch.arange(20)[None]).loss
    assert float(loss.detach()) == pytest.approx(torch.tensor(257.0).log().item(), abs=0.1)
    loss.backward()
    assert all(weight.grad is not None for weight in first.values())


def test_a_missing_weight_alone_is_filled(written):
    made = exported(ODD)
    folder = written(made)
    weights = load_file(folder / "model.safetensors")
    del weights["model.blocks.1.attention.qkv.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    qkv, own = (model.blocks[1].attention.qkv for model in (opened(folder).model, made.model))
    assert torch.equal(qkv.weight, own.weight)
    assert not qkv.bias.any()


def test_half_precision_rounds_weights_and_leaves_angles(written):
    made = exported(ODD)
    theirs = opened(written(made), dtype=torch.bfloat16)
    assert {weight.dtype for weight in theirs.parameters()} == {torch.bfloat16}
    assert torch.equal(theirs.model.rotary.cos_TK, made.model.rotary.cos_TK)


def test_code_is_run_only_where_it_is_trusted(written, copies, monkeypatch):
    folder = written(exported(ODD))
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer(TEXT)["input_ids"] == list(TEXT.encode())
    # Our import runs none of it, nor does our check leave a copy of it behind.
    (folder / CODE.name).write_text("raise SystemExit('it was run')")
    recipe_for(folder, "own")
    (folder / CODE.name).write_bytes(CODE.read_bytes())
    before = sorted(copies.rglob("*")), set(sys.modules)
    load_theirs(folder.rename(folder.with_name("other")), torch.float32)
    assert (sorted(copies.rglob("*")), set(sys.modules)) == before
    assert str(copies) == dynamic_module_utils.HF_MODULES_CACHE


def test_a_missing_or_older_longhaul_is_a_message(written, monkeypatch):
    folder = written(exported(ODD))
    config = json.loads((folder / "config.json").read_bytes())
    changed = config | {"longhaul_version": "9.9", "model": config["model"] | {"rings": 3}}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"9\.9 wrote it: install that version[\s\S]*rings"):
        opened(folder)
    monkeypatch.setitem(sys.modules, "longhaul.model.gpt", None)
    with pytest.raises(ImportError, match="pip install longhaul"):
        exec(compile(CODE.read_text(), "copied.py", "exec"), {"__name__": "copied"})


def test_its_code_names_no_package_but_these():
    found = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(ast.parse(CODE.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert found == {"json", "typing", "torch", "transformers", "longhaul"}


def test_a_mask_is_written_out_where_each_length_would_be_compiled(written, monkeypatch):
    made = exported(ODD)
    theirs = opened(written(made))
    monkeypatch.setattr(masks, "flex_attends", lambda *_: True)
    settings, seen = made.recipe.model, []

    def spied(*arguments: object) -> masks.Sight:
        seen.append(make_sight(*arguments))
        return seen[-1]

    monkeypatch.setattr("longhaul.model.gpt.make_sight", spied)
    theirs(tokens_of(made))
    (sight,) = seen
    assert [view.blocks for view in sight] == [None] * settings.layers


def _model(**changes: object):
    def spoil(config: dict[str, object]) -> None:
        config["model"] |= changes

    return spoil


HOSTILE = {
    "no table": (lambda config: config.pop("model"), r"model.*layers: Field required"),
    "a list for it": (lambda config: config.update(model=[1]), "not a table"),
    "an unknown switch": (_model(rings=3), "rings: Extra inputs are not permitted"),
    "a word for a number": (_model(layers="4"), "layers: Input should be a valid integer"),
    "endless layers": (_model(layers=10**12), "too few bytes"),
    "endless pairs": (_model(bigram_rows=10**15), "too few bytes"),
    "endless context": (_model(context=10**18), "context of"),
    "padded rows": (_model(vocab_multiple=64), "vocab_multiple"),
    "another width": (_model(mlp_width=40), "instead of"),
    "switches that exclude each other": (_model(value_embeddings=3), "no model is like that"),
    "a tail of lines": (_model(**{"a\nb": 1}), "Extra inputs"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_table_is_a_message(what, written):
    folder = written(exported(ODD))
    spoil, said = HOSTILE[what]
    config = json.loads((folder / "config.json").read_bytes())
    spoil(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=said) as refusal:
        recipe_for(folder, "own")
    assert not re.search(r"[\n\r]", refusal.value.message)


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_alone_agrees(switch, written):
    made = exported(SHAPE | {"activation": "relu2", "norm_scale": False} | SWITCHES[switch])
    if made.family is not OWN:  # it would be, without a class for it
        made = type(made)(made.model, OWN, made.recipe, made.tokenizer, made.dtype)
    found = compare(written(made), made, tokens_of(made))
    assert found.largest <= found.bound
