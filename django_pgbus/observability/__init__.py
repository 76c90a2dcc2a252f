"""
How machines look at pgbus: they read the same `stats.py` as the admin, so that no two of them disagree.

`metrics.scrape()` returns all numbers as plain families, as one snapshot saw them. `prometheus.py` and `appsignal.py` hand
them on, each with its extra installed; `health.py` says whether a web process may get requests; `urls.py` has the addresses.
"""
