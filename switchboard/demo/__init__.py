"""What ``switchboard demo`` plays: real servers, a real worker, one of its processes killed, and a count of it all.

It watches from outside, as an operator would: the worker's own code is never imported to decide what is right.
"""
