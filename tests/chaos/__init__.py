"""
Every kind of work under every kind of fault, and a checker that knows nothing of how the product works inside.

`run.py` runs it by hand, README.md says what is done, counted and promised. Nothing of it is in the default test run but
the tests of the checker and one short run.
"""
