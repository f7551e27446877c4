# SPDX-License-Identifier: GPL-2.0-or-later
"""`python3 -m rxlane` is the command where no script is installed."""

import sys

from rxlane.cli import main

sys.exit(main())
