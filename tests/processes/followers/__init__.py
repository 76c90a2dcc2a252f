"""An app with groups of a stream, which only the workers of tests/processes/test_streams.py have installed."""
