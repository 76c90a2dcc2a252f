#!/usr/bin/env python3
"""
Set up a development environment and run something in it. Needs Python 3.11 or newer and pip, nothing else.

    python3 dev.py demo   [arguments of the example's `manage.py demo`]
    python3 dev.py test   [arguments of pytest]
    python3 dev.py lint
    python3 dev.py docs   [arguments of sphinx-build]
    python3 dev.py bench  [arguments of tests/benchmarks/run.py]
    python3 dev.py evidence [parts of docs/evidence.md to make anew]
    python3 dev.py tox    [arguments of tox]

Everything goes into `.venv` beside this file; what a command needs is installed the first time, and again after a change of
pyproject.toml. PGBUS_VENV names another folder. (Written so that an old Python can read it, and say that it is old.)
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.abspath(os.environ.get("PGBUS_VENV") or os.path.join(ROOT, ".venv"))
PYTHON = os.path.join(VENV, "bin", "python")
OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")
PIP = "pip>=25.1"  # the first that knows dependency groups

# command: (extras, dependency group, what is run, environment)
COMMANDS = {
    "demo": ("embedded,pool,prometheus", "example", [["python", "example_project/manage.py", "demo"]], {}),
    "test": ("embedded,pool,orjson", "test", [["python", "-m", "pytest"]], {}),
    "lint": (
        "embedded,pool,orjson",
        "lint",
        [
            ["python", "-m", "ruff", "check", "."],
            ["python", "-m", "ruff", "format", "--check", "."],
            ["python", "-m", "codespell_lib"],
            ["python", "-m", "mypy"],
        ],
        {"PGBUS_EMBEDDED": "0"},
    ),
    "docs": (
        "embedded,pool",
        "docs",
        [["python", "-m", "sphinx", "-W", "-b", "html", "docs", "docs/_build/html"]],
        {"PGBUS_EMBEDDED": "0"},
    ),
    "bench": ("embedded,pool,orjson", "test", [["python", "tests/benchmarks/run.py"]], {}),
    "evidence": ("embedded,pool,orjson", "test", [["python", "-m", "tests.evidence.run"]], {}),
    "tox": ("embedded", "tox", [["python", "-m", "tox"]], {"UV_PYTHON_DOWNLOADS": "never"}),
}


def main(arguments):
    """Run the command and return its exit code."""
    if sys.version_info < OLDEST:
        return refuse_old_python(arguments)
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__.strip())
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    extras, group, steps, environment = COMMANDS[arguments[0]]
    with one_at_a_time():
        install(extras, group)
    environment = dict(os.environ, **environment)
    environment.pop("VIRTUAL_ENV", None)
    os.chdir(ROOT)
    steps = [[PYTHON, *step[1:]] for step in steps]
    if len(steps) == 1:
        sys.stdout.flush()
        os.execve(PYTHON, steps[0] + arguments[1:], environment)  # signals and Ctrl-C go straight to it
    return run_all(steps, environment)


def refuse_old_python(arguments):
    """Say which Python is needed, and which of those here will do."""
    newer = next((name for name in NEWER if runs(name)), None)
    print(
        "django-pgbus needs Python {}.{} or newer; this is {}.{} ({}). {}".format(
            OLDEST[0],
            OLDEST[1],
            sys.version_info[0],
            sys.version_info[1],
            sys.executable,
            "Try: {} dev.py {}".format(newer, " ".join(arguments)) if newer else "Please install one.",
        ),
        file=sys.stderr,
    )
    return 1


def run_all(steps, environment):
    """Run every step, even after one that failed; return the first bad exit code."""
    worst = 0
    for step in steps:
        print("$ " + " ".join(step[2:]), flush=True)
        worst = subprocess.call(step, env=environment) or worst
    return worst


@contextlib.contextmanager
def one_at_a_time():
    """Hold a lock while installing: `demo` and `test` may be started in two terminals at once."""
    import fcntl

    path = VENV + ".lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError:
        sys.exit(
            "{} cannot be written by you (made by root?). Delete it, or set PGBUS_VENV to a folder of yours.".format(
                path
            )
        )
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
    os.close(lock)


def install(extras, group):
    """Install the package in editable form with what the command needs, unless that was done already."""
    stamp = os.path.join(VENV, ".pgbus-{}".format(group))
    wanted = fingerprint(extras)
    if read(stamp) == wanted and runs(PYTHON):
        return
    print("Setting up {} for `{}` (a minute or two the first time) ...".format(VENV, group), flush=True)
    if not runs(PYTHON):
        make_venv()
    elif not os.access(VENV, os.W_OK):
        sys.exit("{} belongs to another user. Delete it, or set PGBUS_VENV to a folder of yours.".format(VENV))
    update_pip()
    pip("install", "-e", ".[{}]".format(extras), "--group", group)
    with open(stamp, "w") as file:
        file.write(wanted)


def fingerprint(extras):
    """Return what an installation depends on, as one text."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        return hashlib.sha256(file.read() + extras.encode() + ROOT.encode()).hexdigest()


def read(path):
    """Return the text of a file, None where there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def runs(python):
    """Return whether this interpreter is there, works, and is new enough."""
    check = "import sys; sys.exit(sys.version_info < {!r})".format(OLDEST)
    try:
        return subprocess.call([python, "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def make_venv():
    """Make the virtual environment, without pip where this Python cannot bring it along (Debian without python3-venv)."""
    if importlib.util.find_spec("venv") is None:
        sys.exit("This Python has no venv module. On Debian: apt-get install python3-venv")
    shutil.rmtree(VENV, ignore_errors=True)
    if importlib.util.find_spec("ensurepip"):
        if subprocess.call([sys.executable, "-m", "venv", VENV]) == 0:
            return
        shutil.rmtree(VENV, ignore_errors=True)
    if subprocess.call([sys.executable, "-m", "venv", "--without-pip", VENV]):
        sys.exit("The virtual environment {} could not be made.".format(VENV))


def update_pip():
    """Bring a pip that knows dependency groups into the environment; the system's pip fills one that has none."""
    inside = (
        subprocess.call([PYTHON, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    )
    if inside:
        pip("install", "--upgrade", PIP)
    elif importlib.util.find_spec("pip"):
        pip("--python", PYTHON, "install", PIP, by=sys.executable)
    else:
        sys.exit("There is neither ensurepip nor pip. On Debian: apt-get install python3-pip (or python3-venv)")


def pip(*arguments, **options):
    """Run pip, or end with what it said."""
    command = [options.get("by", PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if subprocess.call(command + list(arguments), cwd=ROOT):
        sys.exit("pip could not install what is needed (see above).")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
