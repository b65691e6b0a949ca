"""The recipes that are taken apart, and the ideas of each: settings at the recipe's own length."""

from dataclasses import dataclass

Settings = tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """One recipe and its ideas."""

    recipe: str
    without: dict[str, Settings]
    """Idea → settings of the recipe without it."""
    added: dict[str, Settings]
    """Idea that the recipe does without → settings of the recipe with it."""
    on_gpu: bool = False
    """One run at a time on a GPU; else one to a core, and steps are compared in pairs of runs."""
    shape: Settings = ()
    """Of all runs, where the recipe's own is too large for so many of them."""
    steps: int | None = None
    """Length of the whole recipe, everything that it times moved in proportion; None: its own."""


_SHAKESPEARE = Study(
    "speedrun-shakespeare",
    without={
        "table of character pairs": ("model.bigram_rows=0",),
        "rotary positions (learned instead)": ('model.positions="learned"',),
        "QK-norm": ("model.qk_norm=false",),
        "ReLU² (GELU instead)": ('model.activation="gelu"',),
        "zero-initialised projections": ("model.zero_projections=false",),
        "zero-initialised head": ("model.zero_head=false",),
        "norm of the embedding": ("model.embedding_norm=false",),
        "untied head": ("model.tied_head=true", "model.zero_head=false"),
        "wide first embeddings (GPT-2's 0.02 instead)": ("model.init_std=0.02",),
        "one wide block (four of half the width instead)": ("model.layers=4", "model.width=128"),
        "Muon (AdamW instead, its best of three rates)": (
            'optim.name="adamw"', "optim.lr=0.006", "optim.beta1=0.9",
            "optim.lr_factors.head=1.0", "optim.lr_factors.embedding=1.0",
        ),
        "Polar Express (five rounds of the quintic instead)": (
            'optim.muon.coefficients="quintic"', "optim.muon.newton_schulz_steps=5",
        ),
        "orthogonal queries, keys, values apart": ("optim.muon.separate_parts=false",),
        "warm-up of Muon's momentum": ("optim.muon.momentum_warmup_steps=0",),
        "own rates for head and tables": (
            "optim.lr_factors.head=1.0", "optim.lr_factors.embedding=1.0",
        ),
        "short memory of Adam": ("optim.beta1=0.9",),
        "cooldown (a constant rate instead)": ("optim.schedule.final_fraction=1.0",),
        "the fastest number format (float32 instead)": (
            'precision.compute="float32"', 'optim.muon.newton_schulz="float32"',
        ),
    },
    added={
        "token smear": ("model.token_smear=true",),
        "two tokens ahead, for the first half": (
            "model.ahead_stages=[{ from_step = 0, weights = [0.5] },"
            " { from_step = 32, weights = [] }]",
        ),
        "soft cap of the logits": ("model.logit_softcap=15.0",),
        "cautious decay": ("optim.weight_decay=0.01", "optim.cautious_decay=true"),
    },
)  # fmt: skip


def _adamw(lr: str) -> Settings:
    """Of `speedrun-124m`: GPT-2's memories, one rate for all weights."""
    factors = (f"optim.lr_factors.{role}=1.0" for role in ("embedding", "head", "vector"))
    return (
        'optim.name="adamw"', f"optim.lr={lr}", "optim.beta1=0.9", "optim.eps=1e-8",
        "optim.weight_decay=0.1", *factors,
    )  # fmt: skip


_124M = Study(
    "speedrun-124m",
    without={
        "value embeddings": ("model.value_embeddings=0",),
        "value residual": ("model.value_residual=false",),
        "U-net skips": ("model.unet_skips=false",),
        "embedding mixed back": ("model.input_mix=false",),
        "hashed bigrams": ("model.bigram_rows=0",),
        "soft cap of the logits": ("model.logit_softcap=0.0",),
        "untied head": ("model.tied_head=true", "model.zero_head=false"),
        "own rates for head and tables": (
            "optim.lr_factors.head=1.0", "optim.lr_factors.embedding=1.0",
        ),
        "windows": ("model.window=2048", "model.window_stages=[]"),
        "window warm-up": ("model.window_stages=[]",),
        "layers without a window": ("model.window_full_every=0",),
        "document masks": ("model.document_mask=false",),
        "rotary positions (learned instead)": ('model.positions="learned"',),
        "QK-norm": ("model.qk_norm=false",),
        "ReLU² (GELU instead)": ('model.activation="gelu"',),
        "zero-initialised projections": ("model.zero_projections=false",),
        "zero-initialised head": ("model.zero_head=false",),
        "norm of the embedding": ("model.embedding_norm=false",),
        "norms without scales": ("model.norm_scale=true",),
        "wide heads (twelve of half the width instead)": ("model.heads=12",),
        "Muon (AdamW instead, rate 6e-4)": _adamw("6e-4"),
        "Muon (AdamW instead, rate 1.2e-3)": _adamw("1.2e-3"),
        "Muon (AdamW instead, rate 2.4e-3)": _adamw("2.4e-3"),
        "orthogonal queries, keys, values apart": ("optim.muon.separate_parts=false",),
        "warm-up of Muon's momentum": ("optim.muon.momentum_warmup_steps=0",),
        "short memory of Adam": ("optim.beta1=0.9",),
        "weight decay": ("optim.weight_decay=0.0",),
        "cooldown (a constant rate instead)": ("optim.schedule.final_fraction=1.0",),
    },
    added={
        "token smear": ("model.token_smear=true",),
        "three tokens ahead, two, then one": (
            "model.ahead_stages=[{ from_step = 0, weights = [0.5, 0.25] },"
            " { from_step = 633, weights = [0.5] }, { from_step = 1267, weights = [] }]",
        ),
        "Polar Express": ('optim.muon.coefficients="polar-express"',),
        "cautious decay": ("optim.cautious_decay=true",),
        # As many tokens: the first third of them in batches of half the size.
        "batch schedule (half at first)": (
            "batch.sequences=24", "train.steps=2533",
            "batch.stages=[{ from_step = 1267, sequences = 48, sequence_length = 2048 }]",
        ),
    },
    on_gpu=True,
    shape=("batch.sequences=48", "batch.micro_sequences=8"),
    steps=150,
)  # fmt: skip
STUDIES = {study.recipe: study for study in (_SHAKESPEARE, _124M)}
