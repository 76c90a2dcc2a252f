"""Log lines of the worker on the terminal, where the project has configured none."""

from __future__ import annotations

import logging
from typing import Final

LEVELS: Final = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}  # by --verbosity


def log_to_stderr(level: int) -> None:
    """Print our lines from `level` on; a project that has set up our logger keeps its handlers and its level."""
    logger = logging.getLogger("django_pgbus")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("{asctime} {levelname} {message}", style="{"))
        logger.addHandler(handler)
