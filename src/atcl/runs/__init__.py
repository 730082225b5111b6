"""A run and its folder: start it (`start.train`), carry it out, open it again, predict with it, export it.

`layout` names the files of the folder, `spec` the options of a run.
"""
