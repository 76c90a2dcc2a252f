"""
A storm over limits and keys, and the books that are kept of it from outside.

Thousands of jobs over a few limits and many uniqueness keys, processes killed with -9, PostgreSQL restarted. Each run
writes when it began and ended, on a connection of its own; triggers write when a delivery number is raised; who kills
writes whom. `books` says what that adds up to: at no moment more fenced-in runs of a key than allowed. Used by
`tests/processes/test_storm.py` and by the benchmark `storm`.
"""
