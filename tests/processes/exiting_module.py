"""A module of tasks whose import ends in an exit."""

import sys

sys.exit(3)
