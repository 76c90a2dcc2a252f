"""A module of a project that prints when it is imported, by itself and by what it starts."""

import os
import subprocess
import sys

from django_pgbus import task

print("noise of Python")
sys.stdout.flush()
os.write(1, b"noise of C\n")
subprocess.run([sys.executable, "-c", "print('noise of a child')"], check=True)


@task
def loud(word: str) -> None:
    print(word)
