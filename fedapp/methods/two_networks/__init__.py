"""A site has two networks: one teaches the other, or the weights are their sum.

FedSiam (docs/TWO_NETWORKS.md) and RSCFed are the former, FedMatch (docs/LABELS_AT_THE_SERVER.md) is
the latter.
"""
