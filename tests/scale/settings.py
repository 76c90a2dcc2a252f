"""The settings of the test project, for a database that is filled to be measured; `run.py` names it in DATABASE_URL."""

from tests.settings import *  # noqa: F403

DEBUG = False
