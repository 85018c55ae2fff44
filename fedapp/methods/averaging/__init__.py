"""The server averages models that sites trained.

Methods differ in what a site minimises, and in what of its model stays at home. `local_only` is
what they are compared with: nothing is averaged.
"""
