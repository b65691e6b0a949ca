"""A scaling ladder: a recipe trained at several sizes, to see what holds when it grows.

Enters: a recipe's name and options. Leaves: run folders, tables, `ladder.json`. What is trained
next is decided from results alone (`plan.py`), what they mean is arithmetic (`fit.py`,
`analysis.py`); only `ladder.py` starts processes and reads journals.
"""
