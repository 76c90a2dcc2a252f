"""
Settings of the record shop.

Nothing to set up: without `DATABASE_URL` a PostgreSQL of its own starts in `.pgdata` and stops with its last user.
Everything the shop writes stands below `SHOP_HOME` (this folder, unless the environment names another).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django
import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

SHOP_HOME = Path(env.str("SHOP_HOME", default=str(BASE_DIR))).resolve()
SHOP_GATEWAY_URL = env.str("SHOP_GATEWAY_URL", default="http://127.0.0.1:8765")

SECRET_KEY = env.str("SECRET_KEY", default="a-record-shop-has-no-secrets")
DEBUG = env.bool("DEBUG", default=True)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_pgbus",
    "shop",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")  # the backport: django.tasks came with Django 6.0

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES: dict[str, dict[str, Any]]
if env.str("DATABASE_URL", default=""):
    DATABASES = {"default": env.db("DATABASE_URL")}
else:
    from django_pgbus.embedded import EmbeddedPostgres

    DATABASES = {"default": EmbeddedPostgres(SHOP_HOME / ".pgdata").start().database()}
DATABASES["default"].setdefault("CONN_MAX_AGE", 60)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}}
PGBUS = {"VISIBILITY_TIMEOUT": 10}  # a job of a machine that vanished is taken over after ten seconds

_MAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
_MAIL_FOLDER = str(SHOP_HOME / "var" / "mail")
DEFAULT_FROM_EMAIL = "Record shop <shop@example.com>"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": _MAIL_BACKEND, "OPTIONS": {"file_path": _MAIL_FOLDER}}}
else:
    EMAIL_BACKEND = _MAIL_BACKEND
    EMAIL_FILE_PATH = _MAIL_FOLDER
SHOP_MAIL_FOLDER = _MAIL_FOLDER

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
