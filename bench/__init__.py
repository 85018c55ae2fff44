"""Benchmarks and studies: what the documentation says in numbers, each with its command.

All stand on one harness: `command` (what a command line has in common), `measure` (times, side by
side), `runs` (runs that are looked into, and results that are kept), `record` (what was found, with
machine and command, into bench/results), `tables` (these into the documentation), `workload` (a
network and images). Every other module is a page of what differs.
"""
