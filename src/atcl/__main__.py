"""`python -m atcl` is the command `atcl`."""

import sys

from atcl.cli import main

sys.exit(main())
