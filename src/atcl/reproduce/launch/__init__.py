"""Launchers, which make the runs of a table on this machine, on a Ray cluster, or on a SLURM cluster.

`launchers.LAUNCHERS` names them, `options` holds their options, and `workers.run_jobs` gives jobs to workers.
"""
