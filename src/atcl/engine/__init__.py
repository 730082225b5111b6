"""How training steps and attacks run fast: compiled, replayed, in low precision, several runs in turn.

The training loop does not know which of these is in use: `engines.engine_of` returns an `Engine`, and an
`Engine` runs functions that other modules write plainly. May import `core` and PyTorch, and nothing that
knows the truth.
"""
