"""Text written by a model, drawn by random generators of its own."""

from collections.abc import Iterator, Sequence

import torch

from longhaul.config.recipe import Recipe
from longhaul.data.tokenizing import Tokenizer
from longhaul.model.gpt import GPT
from longhaul.parallel.world import World
from longhaul.train.parts import Parts


def sample_tokens(
    model: GPT,
    prompt: Sequence[int],
    *,
    most_tokens: int,
    context: int,
    temperature: float,
    top_k: int,
    seed: int,
    device: torch.device,
    end_of_text: int | None = None,
    ranks: World | None = None,
) -> Iterator[int]:
    """Draw tokens that follow `prompt`, which is one at least, until there are `most_tokens` or the
    text ends, with a token that is not yielded.

    As long as the text fits the context, a pass reads only what is new and a cache holds the rest;
    beyond it every position moves, and each token costs a pass over the whole context. `ranks`
    that hold parts of the model draw together, with rank 0's luck; they read the whole text for
    each token, as a single position cannot be dealt out over a layer's ranks.

    `temperature` divides the model's logits [B, T, V]; 0 takes the likeliest token. Drawn is one of
    the `top_k` likeliest, or of all if it is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    history = list(prompt)
    was_training, skipped_masked = model.training, model.skips_masked
    model.eval()
    model.skips_masked = False  # by code that would be compiled for every length of the text
    try:
        cache = None if ranks is not None else model.new_cache(batch=1)
        for _ in range(most_tokens):
            with torch.inference_mode():
                if ranks is not None:
                    seen = history[-context:]
                    padding = [0] * (-len(seen) % ranks.layout.tensor)
                    padded_BT = torch.tensor([seen + padding], device=device)
                    own_V = model(padded_BT)[0, len(seen) - 1]
                    logits_BTV = ranks.whole_logits(own_V, model.vocab_size)[None, None]
                elif cache is not None and len(history) <= context:
                    fresh_BT = torch.tensor([history[cache.length :]], device=device)
                    logits_BTV = model(fresh_BT, cache=cache)
                else:
                    logits_BTV = model(torch.tensor([history[-context:]], device=device))
                logits_V = logits_BTV[0, -1].float().cpu()
            token = pick_token(logits_V, temperature, top_k, generator)
            token = token if ranks is None else ranks.control.first_number(token)
            if token == end_of_text:
                return
            history.append(token)
            yield token
    finally:
        model.train(was_training)
        model.skips_masked = skipped_masked


def write_sample(parts: Parts, settings: Recipe) -> str:
    """The text that the recipe asks for, by all ranks together: each may hold but a part of the
    model.
    """
    step, tokenizer = parts.step, parts.dataset.tokenizer
    tokens: list[int] = []
    for token in sample_tokens(
        step.model,
        prompt_tokens(tokenizer, settings.sample.prompt),
        most_tokens=settings.sample.tokens,
        context=settings.model.context,
        temperature=settings.sample.temperature,
        top_k=settings.sample.top_k,
        seed=settings.seed,
        device=step.device,
        end_of_text=tokenizer.end_of_text,
        ranks=parts.ranks,
    ):
        step.alive()
        tokens.append(token)
    return settings.sample.prompt + tokenizer.decode(tokens)


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Tokens of a prompt after begin-of-text, if there is any; of an empty one without, what stands
    before every text.
    """
    tokens = [int(token) for token in tokenizer.encode(prompt)]
    if tokenizer.begin_of_text is not None:
        return [tokenizer.begin_of_text, *tokens]
    return tokens or [tokenizer.end_of_text or 0]


def pick_token(
    logits_V: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator
) -> int:
    """A token by its logit, which temperature divides, of the `top_k` likeliest; see above."""
    if temperature == 0:
        return int(logits_V.argmax())
    if 0 < top_k < logits_V.numel():
        least = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, float("-inf"))
    probabilities_V = torch.softmax(logits_V / temperature, dim=-1)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
