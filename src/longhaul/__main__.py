"""`python -m longhaul` is the `longhaul` command."""

from longhaul.cli.entry import main

main()
