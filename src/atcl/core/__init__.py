"""The basis of all packages: errors, seeds, precisions, settings as data, files, the journal, checkpoints.

Import from its modules: `from atcl.core.errors import AtclError`. Nothing here depends on images or labels.
"""
