"""
Workers on three hosts, of which one is cut off from PostgreSQL and comes back.

A host is a network namespace with an address and a name of its own. `run.py` runs it by hand; the suite runs it where it is
root and namespaces can be made.
"""
