"""Benchmarks: what performance costs and what it is compared with; never part of the test run. See README.md."""
