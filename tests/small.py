"""A small real experiment that runs in a second or two: handwritten digits, narrow network."""

from dataclasses import replace
from typing import Any

from fedapp.core.settings import (
    DataSettings,
    RoundSettings,
    RuntimeSettings,
    SplitSettings,
    TrainSettings,
)
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.um_pfssl.method import UmPfssl

SMALL = Experiment(
    name="small",
    method=UmPfssl(
        helper_list_size=3, num_replaced=1, search_rounds=3, update_every=2, mc_samples=3
    ),
    seed=1,
    data=DataSettings(name="digits", subset=500),
    split=SplitSettings(num_clients=5, dirichlet_alpha=1.0),
    model=ResNet9Settings(width=4),
    training=TrainSettings(local_epochs=1, warmup_epochs=2, batch_size=16, learning_rate=0.02),
    rounds=RoundSettings(num_rounds=4, sample_rate=0.5, deadline_s=60.0),
    runtime=RuntimeSettings(device="cpu"),
)


def small(**changes: Any) -> Experiment:
    """SMALL with other groups or, as `group__key=value`, other values within a group."""
    experiment = SMALL
    for name, value in changes.items():
        group, _, key = name.partition("__")
        if key:
            value = replace(getattr(experiment, group), **{key: value})
        experiment = replace(experiment, **{group: value})
    return experiment
