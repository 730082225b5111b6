"""The training loop (`loop.fit`), its settings (`stage.Stage`), objectives, schedules, supervision.

Nothing in this package, or in the packages that it imports, can hold a true label.
"""
