"""What one GPU makes of longhaul: parts of at most 8 minutes, each a process of its own.

`parts.py` lists them, `__main__.py` runs those that are missing and merges what they found,
`report.py` keeps it as JSON and Markdown; a part finds a recipe, its text and its tools in
`setting.py`. With `--tiny` the same code runs on small twins on a CPU, where figures mean nothing.
"""
