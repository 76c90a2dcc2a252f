"""
The demonstration: everything at once, in front of you, and then the sums.

Not part of how a shop would run: that is `runworker` and a web server.
"""
