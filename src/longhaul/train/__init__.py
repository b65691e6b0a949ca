"""The step, the trainer, evaluation and sampling. Never judges: it reports and obeys."""
