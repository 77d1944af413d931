"""Limits of memory and forked processes, as the campaign uses them, exist on Linux alone."""

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]
