"""All sabotages; `run.py --sabotage NAME` runs the chaos of one, `--tests` its tests."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Sabotage
from tests.chaos.sabotages_events import EVENTS
from tests.chaos.sabotages_keys import KEYS
from tests.chaos.sabotages_limits import LIMITS
from tests.chaos.sabotages_queues import QUEUES
from tests.chaos.sabotages_streams import STREAMS
from tests.chaos.sabotages_worker import WORKER

SABOTAGES: Final[dict[str, Sabotage]] = {
    sabotage.name: sabotage for sabotage in (*QUEUES, *LIMITS, *KEYS, *EVENTS, *STREAMS, *WORKER)
}
