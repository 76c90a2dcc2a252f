"""An app with handlers of events, which only the workers of tests/processes/test_events.py have installed."""
