"""Where jobs run: threads for sync tasks, one event loop for async ones."""
