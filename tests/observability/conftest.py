"""Who asks: a monitor with the token, and people with permissions."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.admin.conftest import login as login
from tests.observability.reading import TOKEN


@pytest.fixture
def monitor(settings: Any) -> Client:
    """A client that knows the token."""
    settings.PGBUS = {"METRICS_TOKEN": TOKEN}
    return Client(headers={"Authorization": f"Bearer {TOKEN}"})
