"""A progress bar for terminals, and a line now and then for everything else."""

from __future__ import annotations

import time

from django.core.management.base import OutputWrapper

WIDTH = 40
EVERY = 10  # percent between two lines where there is no terminal


class Progress:
    """Shows a share from 0 to 1; `say` prints a line without spoiling the bar."""

    def __init__(self, out: OutputWrapper) -> None:
        self.out = out
        self.is_terminal = out.isatty()
        self.began = time.monotonic()
        self._shown = -EVERY
        self._bar = ""

    def show(self, share: float, text: str = "") -> None:
        """Draw the bar."""
        percent = int(share * 100)
        filled = int(share * WIDTH)
        marks = "#" * filled + "." * (WIDTH - filled)
        bar = f"  [{marks}] {percent:3d} %  {time.monotonic() - self.began:5.1f} s  {text}"
        if self.is_terminal:
            self._write(f"\r{bar:<{len(self._bar)}}")
            self._bar = bar
        elif percent >= self._shown + EVERY or (percent == 100 and self._shown < 100):
            self._shown = percent
            self._write(f"{bar.rstrip()}\n")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._write(f"\r{line:<{len(self._bar)}}\n{self._bar}" if self._bar else f"{line}\n")

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar:
            self._write("\n")
            self._bar = ""

    def _write(self, text: str) -> None:
        self.out.write(text, ending="")
        self.out.flush()
