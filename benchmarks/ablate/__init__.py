"""What each idea of a speedrun buys: the recipe is trained with one idea off at a time.

`ideas.py` lists the ideas of each recipe, `training.py` trains and keeps every run, `worth.py`
makes figures and tables of the runs, `__main__.py` is the command. With `--tiny` the same code
trains a small twin on a CPU, where figures mean nothing.
"""
