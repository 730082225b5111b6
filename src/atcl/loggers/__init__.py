"""Watchers that show or log a run: progress on a terminal, TensorBoard, CSV."""
