"""
The settings of the test project, and of the tools that import settings (mypy, Sphinx).

    DATABASE_URL                     a server to use instead of the embedded one
    PGBUS_TEST_PGDATA                folder of the embedded server, kept; without it each run has its own, deleted after it
    PGBUS_EMBEDDED=0                 start no server: for tools that only read
    PGBUS_TEST_SUFFIX                added to the names of the test databases, so that runs can share a server
    PGBUS_TEST_UNFOLD=1              django-unfold is among the apps
    PGBUS_TEST_SERVER_SIDE_BINDING=1, PGBUS_TEST_POOL=1      the suite once more with that option of psycopg
    PGBUS_TEST_DIRECT_URL            DATABASE_URL is a transaction pooler, and this is the server behind it (tests/pooler)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

import django
import environ

env = environ.Env()
sys.path.append(str(Path(__file__).parents[1] / "example_project"))
MEMORY_NEEDED = 4 << 30  # bytes free, of which a run uses a tenth
SERVER = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "max_prepared_transactions": "10",
}


def _embedded(name: str) -> dict[str, Any]:
    from django_pgbus.embedded import EmbeddedPostgres

    keep = "PGBUS_TEST_PGDATA" in os.environ
    if not keep:  # xdist's workers and the processes that tests start inherit it, and so share the server
        os.environ["PGBUS_TEST_PGDATA"] = str(place_for_a_run() / f"pgbus-test-{secrets.token_hex(4)}")
    server = EmbeddedPostgres(os.environ["PGBUS_TEST_PGDATA"], keep=keep)
    server.start(**SERVER)
    return server.database(name)


def place_for_a_run() -> Path:
    """Return where a server that lives for one run lies: in memory where there is plenty, which halves the start."""
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        room = os.statvfs(memory)
        if os.access(memory, os.W_OK) and room.f_bavail * room.f_frsize > MEMORY_NEEDED:
            return memory
    return Path(tempfile.gettempdir())


def _options() -> dict[str, Any]:
    options: dict[str, Any] = {}
    if env.bool("PGBUS_TEST_SERVER_SIDE_BINDING", default=False):
        options["server_side_binding"] = True
    if env.bool("PGBUS_TEST_POOL", default=False):
        options["pool"] = {"min_size": 1, "max_size": 20, "timeout": 10}
    return options


def _database() -> dict[str, Any]:
    if env("DATABASE_URL", default=""):
        return dict(env.db())
    if not env.bool("PGBUS_EMBEDDED", default=True):
        return {"ENGINE": "django.db.backends.postgresql", "HOST": "localhost", "USER": "postgres", "NAME": "postgres"}
    return _embedded("postgres")


def _alias(test_name: str) -> dict[str, Any]:
    suffix = "".join(c if c.isalnum() else "_" for c in env("PGBUS_TEST_SUFFIX", default=""))
    options = {**server.get("OPTIONS", {}), **_options()}
    return {**server, "OPTIONS": options, "TEST": {"NAME": f"{test_name}_{suffix}" if suffix else test_name}}


server = _database()
DATABASES = {"default": _alias("test_pgbus"), "other": _alias("test_pgbus_other")}
if env("PGBUS_TEST_DIRECT_URL", default=""):
    for pooled in DATABASES.values():
        pooled["DISABLE_SERVER_SIDE_CURSORS"] = True
    DATABASES["direct"] = {**env.db("PGBUS_TEST_DIRECT_URL"), "TEST": {"MIRROR": "default"}}

with_unfold = env.bool("PGBUS_TEST_UNFOLD", default=False)
INSTALLED_APPS = [
    *(["unfold"] if with_unfold else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "django_pgbus",
    "shop",  # the example is tested too
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
if django.VERSION >= (6,) and not with_unfold:  # the strictest policy: no inline script or style anywhere
    MIDDLEWARE.insert(1, "django.middleware.csp.ContentSecurityPolicyMiddleware")
    SECURE_CSP = {"default-src": ["'self'"]}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = True
TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}}

SHOP_HOME = Path(tempfile.gettempdir()) / "pgbus-test-shop"  # tests that write there set their own
SHOP_MAIL_FOLDER = str(SHOP_HOME / "mail")
SHOP_GATEWAY_URL = "http://127.0.0.1:9"
