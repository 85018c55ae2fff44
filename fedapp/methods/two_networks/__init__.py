"""A site has two networks: one teaches the other, or the weights are their sum.

FedSiam (docs/research/two_networks.md) and RSCFed are the former, FedMatch
(docs/research/labels_at_the_server.md) is the latter.
"""
