"""`python -m atcl` is the command `atcl`."""

import sys

from atcl.cli.entry import main

sys.exit(main())
