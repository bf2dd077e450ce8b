"""What Switchboard costs and gains beside what a team would pick instead, in one run on one machine.

`make bench` runs it; `python -m bench.run --help` says how. What was tried, and why, is in `bench/NOTES.md`.
"""
