"""What answers are worth: metrics, intervals, the kept model, the verdict on joining, warnings.

Numbers in, numbers and words out: no network is run here, and nothing is read or written.
"""
