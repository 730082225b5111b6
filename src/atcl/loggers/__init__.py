"""Watchers of a run that show or log it: progress on a terminal, TensorBoard."""
