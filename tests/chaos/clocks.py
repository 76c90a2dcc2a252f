"""A wall clock that is wrong, for one worker: a small library, compiled when it is needed and loaded before others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("skew.c")


def library(folder: Path) -> Path | None:
    """Return the library, or None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "skew.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    return made if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


def environment(library: Path | None, seconds: int) -> dict[str, str]:
    """Return what lets a process believe that it is so many seconds later."""
    if library is None or not seconds:
        return {}
    return {"LD_PRELOAD": str(library), "SKEW": str(seconds)}
