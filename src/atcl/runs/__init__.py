"""A run and its folder: start it (`start.train`), carry it out, open it again, predict with it, export it.

`spec` holds the options of a run, `layout` the names of the files in its folder.
"""
