"""How machines look at pgbus: they read the same `stats.py` as the admin, so that no two of them disagree."""
