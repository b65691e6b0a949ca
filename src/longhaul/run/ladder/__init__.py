"""`longhaul ladder`: the runs of a scaling ladder, trained one after the other."""
