"""
The report of a record, for people: one HTML file with plots, and a page of the documentation.

    python -m tests.benchmarks.page RECORD --html FILE     the whole report, self-contained
    python -m tests.benchmarks.page RECORD --docs          docs/operations/benchmarks.md and what belongs to it
"""
