"""How likely a model finds tokens, in batches: what perplexity and tasks are made of.

Shape suffixes: B sequences of a batch, T tokens of a sequence, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.nn import functional

from longhaul.core.units import Nats
from longhaul.model.head import IGNORED_TARGET
from longhaul.run.trained import Trained
from longhaul.train.precision import autocast
from longhaul.train.sampling import pick_token

LOGITS_AT_ONCE = 1 << 25
"""Of a batch, 128 MiB in float32; one sequence is computed even if it has more."""
_BY_LAYER = 8


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens of which the last ones are scored: what a model reads at once."""

    tokens: tuple[int, ...]
    """At most one more than the model's context."""
    scored: int
    """How many of the last ones are; fewer than all, as nothing precedes the first."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a model says of the scored tokens of one or more windows."""

    nats: Nats = 0.0
    """Negative log-likelihood, summed."""
    greedy: bool = True
    """Each of them was the likeliest at its place."""

    def __add__(self, other: "Score") -> "Score":
        return Score(self.nats + other.nats, self.greedy and other.greedy)


def windows_of(tokens: Sequence[int], scored: int, context: int) -> Iterator[Window]:
    """Windows that score each of the last `scored` tokens once; the last one with all the context
    there is, as the harness has it (`LM.loglikelihood_rolling`).
    """
    begin = max(1, len(tokens) - scored)
    while begin < len(tokens):
        end = min(begin + context, len(tokens))
        yield Window(tuple(tokens[max(0, end - 1 - context) : end]), end - begin)
        begin = end


class Scorer:
    """Scores windows with a trained model, in the precision of its evaluations."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        # Where each pass reads all weights, few passes are worth a gigabyte.
        most = LOGITS_AT_ONCE * (_BY_LAYER if trained.by_layer else 1)
        self._rows = max(1, most // trained.model.vocab_size)

    def score(self, windows: Sequence[Window]) -> list[Score]:
        """The score of each window, in their order; those of about one length share a batch."""
        order = sorted(range(len(windows)), key=lambda n: -len(windows[n].tokens))
        scores = [Score()] * len(windows)
        while order:
            # The first of what is left is the longest, and all are padded to its length.
            most = max(1, self._rows // max(1, len(windows[order[0]].tokens) - 1))
            batch, order = order[:most], order[most:]
            for number, score in zip(batch, self._batch([windows[n] for n in batch]), strict=True):
                scores[number] = score
        return scores

    def _batch(self, windows: Sequence[Window]) -> list[Score]:
        longest = len(windows[0].tokens)
        if longest < 2:
            return [Score()] * len(windows)
        tokens_BT = torch.zeros(len(windows), longest, dtype=torch.int64)
        targets_BT = torch.full((len(windows), longest), IGNORED_TARGET)
        for row, window in enumerate(windows):
            length = len(window.tokens)
            tokens_BT[row, :length] = torch.tensor(window.tokens)
            scored = slice(length - window.scored, length)
            targets_BT[row, scored] = tokens_BT[row, scored]
        device = self._trained.device
        with torch.inference_mode(), autocast(device, self._trained.recipe.precision):
            # Causal: what pads a sequence behind its end is seen by none of its tokens.
            logits_BTV = self._trained.model(tokens_BT[:, :-1].to(device))
            targets_BT = targets_BT[:, 1:].to(device)
            losses_BT = functional.cross_entropy(
                logits_BTV.float().transpose(1, 2), targets_BT, ignore_index=IGNORED_TARGET,
                reduction="none",
            )  # fmt: skip
            missed_BT = (logits_BTV.argmax(-1) != targets_BT) & (targets_BT != IGNORED_TARGET)
            nats_B = losses_BT.double().sum(1).tolist()
            missed_B = missed_BT.any(1).tolist()
        return [Score(nats, not missed) for nats, missed in zip(nats_B, missed_B, strict=True)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text to be gone on with."""

    tokens: tuple[int, ...]
    """What stands there; one at least."""
    until: tuple[str, ...]
    """The text ends before the first of these."""
    most_tokens: int
    temperature: float = 0.0
    """0 takes the likeliest token each time."""


def write(trained: Trained, wanted: Sequence[Wanted], at_once: int = 16) -> list[str]:
    """What the model writes for each, in their order; prompts of one length are written together,
    so that no token is padding.
    """
    order = sorted(range(len(wanted)), key=lambda n: len(wanted[n].tokens))
    texts = [""] * len(wanted)
    for _, group in groupby(order, key=lambda n: len(wanted[n].tokens)):
        numbers = list(group)
        for begin in range(0, len(numbers), at_once):
            batch = numbers[begin : begin + at_once]
            for number, text in zip(
                batch, _write(trained, [wanted[n] for n in batch]), strict=True
            ):
                texts[number] = text
    return texts


def _write(trained: Trained, wanted: Sequence[Wanted]) -> list[str]:
    model, tokenizer = trained.model, trained.dataset.tokenizer
    context = trained.recipe.model.context
    history = [list(one.tokens[-context:]) for one in wanted]
    begin, texts, done = len(history[0]), [""] * len(wanted), [False] * len(wanted)
    generator = torch.Generator().manual_seed(trained.recipe.seed)
    cache = model.new_cache(batch=len(wanted))
    while not all(done):
        fits = len(history[0]) <= context
        seen = [row[cache.length :] if fits else row[-context:] for row in history]
        read_BT = torch.tensor(seen, device=trained.device)
        with torch.inference_mode(), autocast(trained.device, trained.recipe.precision):
            logits_BTV = model(read_BT, cache=cache) if fits else model(read_BT)
        last_BV = logits_BTV[:, -1].float().cpu()
        for row, one in enumerate(wanted):
            token = pick_token(last_BV[row], one.temperature, 0, generator)
            history[row].append(token)
            if done[row]:
                continue
            ends = token == tokenizer.end_of_text
            text = tokenizer.decode(history[row][begin : -1 if ends else None])
            stops = [at for stop in one.until if stop and (at := text.find(stop)) >= 0]
            texts[row] = text[: min(stops)] if stops else text
            done[row] = ends or bool(stops) or len(history[row]) - begin >= one.most_tokens
    return texts
