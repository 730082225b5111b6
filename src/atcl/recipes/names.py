"""Names of recipes that other code refers to; importing them is quick, since PyTorch is not needed."""

DEFAULT = "digits/warmup-pla"  # the recipe that is trained if none is named
OWN = "own"  # the dataset in the names of recipes for a user's own data
