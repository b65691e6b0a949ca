"""The command line: thin commands, one file a group; heavy imports happen inside them."""
