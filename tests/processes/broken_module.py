"""A module of tasks that cannot be imported."""

raise RuntimeError("This module is broken.")
