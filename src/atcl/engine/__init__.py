"""How a training step and an attack are carried out fast: compiled, in CUDA graphs, in low precision, several runs in turns.

The loop does not know which: `engines.engine_of` gives an `Engine`, and an `Engine` runs functions that are written plainly elsewhere.
"""
