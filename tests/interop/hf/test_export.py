"""A folder that is exported loads in transformers, and computes there what the model computes."""

import io
import json

import pytest
import torch
from safetensors import safe_open
from sentencepiece import SentencePieceTrainer

from interop.hf.conftest import GPT2, SHAPES, TEXT, exported, tokens_of
from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.model import ModelSection
from longhaul.core.errors import DataError, UsageError
from longhaul.data.sentencepiece import SentencePieceTokenizer
from longhaul.data.subwords import SubwordTokenizer, train_bpe
from longhaul.data.tokenizing import CharacterTokenizer, NumberTokenizer
from longhaul.interop.hf.agreement import compare, compare_tokenizers, load_theirs
from longhaul.interop.hf.families import family_for, nearest_to
from longhaul.interop.hf.family import ALWAYS, NOT_AFTERWARDS, PLAIN

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("family", SHAPES)
def test_auto_classes_load_the_folder_and_agree(family, written):
    made = exported(SHAPES[family] | {"vocab_multiple": 64})
    folder = written(made)
    found = compare(folder, made, tokens_of(made))
    assert found.largest <= found.bound
    assert found.loss == pytest.approx(found.loss_there, abs=1e-5)
    compare_tokenizers(folder, made.tokenizer, TEXT)
    theirs = load_theirs(folder, torch.float32)
    assert theirs.config.model_type == family
    assert theirs.config.vocab_size == made.tokenizer.vocab_size  # rows of padding stay here
    assert theirs.generation_config.eos_token_id == made.tokenizer.end_of_text


def test_tokens_at_a_document_s_begin_and_end_have_their_names_there(written):
    trained = json.loads(train_bpe([TEXT], 260, end_of_text=True).content())
    usual = trained["added_tokens"][0]
    names = ["<s>", "<|im_end|>"]
    trained["added_tokens"] += [usual | {"id": 260 + n, "content": c} for n, c in enumerate(names)]
    content = json.dumps(trained).encode()
    tokenizer = SubwordTokenizer(content, "<|im_end|>", "x", begin_of_text=True)
    folder = written(exported(GPT2, tokenizer))
    compare_tokenizers(folder, tokenizer, TEXT)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (theirs.bos_token, theirs.eos_token) == ("<s>", "<|im_end|>")
    for name in ("config.json", "generation_config.json"):
        said = json.loads((folder / name).read_bytes())
        assert (said["bos_token_id"], said["eos_token_id"]) == (
            tokenizer.begin_of_text,
            tokenizer.end_of_text,
        )


def test_large_models_are_cut_into_files_with_an_index(written):
    made = exported(GPT2)
    folder = written(made, shard_bytes=5_000)
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files == sorted(path.name for path in folder.glob("*.safetensors"))
    sizes = [(folder / name).stat().st_size for name in files]
    assert sum(sizes) > index["metadata"]["total_size"] > 0.5 * sum(sizes)
    assert compare(folder, made, tokens_of(made)).largest <= 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_half_precision_is_compared_rounded_and_as_it_computes(family, written):
    made = exported(SHAPES[family], dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.mul_(0.6)
    before = {name: weight.clone() for name, weight in made.model.named_parameters()}
    folder = written(made)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("model.norm.weight").dtype == torch.bfloat16
    found = compare(folder, made, tokens_of(made))
    assert found.largest <= found.bound
    assert 0 < abs(found.loss - found.loss_there) <= 0.02
    for name, weight in made.model.named_parameters():
        assert torch.equal(weight, before[name])


def test_a_folder_that_computes_something_else_is_refused(written):
    made = exported(GPT2)
    folder = written(made)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"activation_function": "relu"}))
    with pytest.raises(DataError, match="computes other logits"):
        compare(folder, made, tokens_of(made))
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(DataError, match=r"missing_keys transformer\.h\.2"):
        compare(folder, made, tokens_of(made))


def test_other_angles_are_refused(written):
    made = exported(SHAPES["llama"])
    folder = written(made)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 9_900.0}))
    with pytest.raises(DataError, match="other angles"):
        compare(folder, made, tokens_of(made))


@pytest.mark.parametrize("kind", ["bpe", "bpe without end", "characters"])
def test_tokenizers_that_longhaul_makes_are_read_by_auto_tokenizer(kind, written):
    if kind == "characters":
        tokenizer = CharacterTokenizer(TEXT, end_of_text=True)
    else:
        tokenizer = train_bpe([TEXT] * 3, 300, end_of_text=kind == "bpe")
    folder = written(exported(GPT2, tokenizer))
    compare_tokenizers(folder, tokenizer, TEXT)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.decode(theirs(TEXT)["input_ids"]) == TEXT
    other = train_bpe(["another text altogether, " + TEXT], 280, end_of_text=True)
    with pytest.raises(DataError, match="makes other tokens"):
        compare_tokenizers(folder, other, TEXT)


@pytest.mark.parametrize("family", ["llama", "longhaul"])
def test_sentencepiece_models_go_out_as_they_are_where_a_class_reads_them(family, written):
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 9), model_writer=made, model_type="bpe", vocab_size=330,
        normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(made.getvalue(), end_of_text=True, name="made")
    folder = written(exported(SHAPES[family], tokenizer))
    assert (folder / "tokenizer.model").read_bytes() == made.getvalue()
    compare_tokenizers(folder, tokenizer, f"{TEXT}  the clocks")


def test_a_sentencepiece_model_beside_another_class_is_refused(written):
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 9), model_writer=made, vocab_size=40,
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    with pytest.raises(UsageError, match="no class of transformers reads one"):
        written(exported(GPT2, SentencePieceTokenizer(made.getvalue(), True, "made")))


def test_numbers_that_stand_for_another_tokenizer_are_not_passed_off_as_one(written):
    folder = written(exported(GPT2, NumberTokenizer(50, end_of_text=True)))
    assert not (folder / "tokenizer.json").exists()


def test_every_setting_of_a_model_is_known_to_the_table():
    parts = ALWAYS, NOT_AFTERWARDS, frozenset(PLAIN)
    assert frozenset().union(*parts) == frozenset(ModelSection.model_fields)
    assert sum(map(len, parts)) == len(ModelSection.model_fields)


def test_models_that_no_class_has_are_exported_as_our_own():
    found = {}
    for name in shipped_recipes():
        found[name] = family_for(load_recipe(name).recipe.model).model_type
    assert found["gpt2-124m"] == found["shakespeare-char"] == "gpt2"
    assert found["opt-125m"] == found["opt-175b"] == "opt"
    assert found["llama-1b"] == found["llama-8b"] == "llama"
    assert found["quickstart"] == found["speedrun-124m"] == "longhaul"
    near, lacks = nearest_to(load_recipe("quickstart").recipe.model)
    assert (near.model_type, lacks) == ("qwen3", ["model.activation = relu2"])
