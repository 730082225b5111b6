"""The loop (`loop.fit`), a stage of it as data (`stage.Stage`), and what its parts are made of: objectives, schedules, supervision.

Nothing here, or in the rooms that it imports, can reach a true label.
"""
