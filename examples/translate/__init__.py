"""A hybrid translator: phrases from counts, sentences from a network, and a judge between them.

Enters: message catalogues of packages. Leaves: a translation, with the two that it was chosen from.
Its modules use longhaul as any user does; nothing in longhaul knows of them.
"""
