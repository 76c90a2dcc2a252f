"""Run the payment gateway by itself, for workers started by hand."""

from __future__ import annotations

import contextlib
import threading
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand

from shop.gateway import Gateway


class Command(BaseCommand):
    """`manage.py gateway`."""

    help = "Runs the practice payment gateway at SHOP_GATEWAY_URL until Ctrl-C."
    requires_system_checks = []

    def handle(self, **options: Any) -> None:
        """Serve until interrupted, then say what was asked."""
        with Gateway(port=urlsplit(settings.SHOP_GATEWAY_URL).port or 80) as gateway:
            self.stdout.write(f"Payment gateway at {gateway.url} (Ctrl-C ends it)")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
            self.stdout.write(f"asked {gateway.asked.total()}, failed {gateway.failed}, charged {len(gateway.charged)}")
