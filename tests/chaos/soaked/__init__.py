"""The app of the soak: what its workers run, and what they keep for how long."""
