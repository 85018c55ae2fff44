"""This project's FedAvg, many sites as one batch (`runtime.grouped`)."""

from functools import partial

from bench.peers import ours

run = partial(ours.run, grouped=True)
