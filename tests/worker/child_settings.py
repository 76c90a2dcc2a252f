"""Settings of children that touch no database: nothing to import, nothing to connect to."""

SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
PGBUS = {"DATABASE": "default"}
