"""What every room builds on: errors, seeds, precisions, settings as data, files, the journal, checkpoints.

Import from its modules: `from atcl.core.errors import AtclError`. Nothing here knows about images or labels.
"""
