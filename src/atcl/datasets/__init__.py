"""True labels begin here: datasets with their truth, and how it is weakened to complementary labels.

Also the readers of files that people have: official formats, pickles (read as data), CSV, matrices.
"""
