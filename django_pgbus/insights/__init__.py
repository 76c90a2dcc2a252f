"""
What ran, how often, how long it took and how long it had stood in the line.

Each worker process adds up what its runs came to and writes the sums as rows, at most once per beat and only if something
ran: writers insert and never wait for each other. A sweep sums these rows into minutes and adds them, in the same
statement, to one total per task and queue; older rows become ten minutes, then hours, and after eight days they are gone.
So nobody reads the archive to know how busy it was, and a page asks a fixed number of times.

A run counts once, when what came of it is settled. Runs whose process was killed are counted by nobody: what counts is
the attempt that follows. Numbers that a process had not yet written when it was killed are lost.
"""
