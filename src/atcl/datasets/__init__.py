"""Datasets with true labels, and how complementary labels are drawn from these or read from files.

Packages that train never import this one. Files in official formats, pickles among them, are read as data:
nothing in them is executed.
"""
