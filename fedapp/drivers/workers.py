"""What a worker of a simulation needs, measured on the preset's largest site.

By a mini-batch of training and an evaluation, in a process of its own. Flower's default, a worker
per core whatever it needs, ends large models in an out-of-memory kill.

`python -m fedapp.drivers.workers PRESET [key=value ...]` measures and prints JSON.
"""

import json
import resource
import sys
from dataclasses import asdict, replace

import torch

from fedapp.data.parts import Part
from fedapp.drivers.need import ACTOR, CONTEXT, Need
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.ground.devices import pick_device, pick_dtype, torch_threads
from fedapp.ground.errors import FedAppError
from fedapp.learn.networks import build_model
from fedapp.learn.params import Params
from fedapp.learn.parsed import MEMORY
from fedapp.messages.protocol import INITIAL_SITE, ModelRef, Task
from fedapp.methods.base import SiteContext
from fedapp.site.federation import federation_of


def measure(experiment: Experiment) -> Need:
    """Do a mini-batch of training and an evaluation at the largest site; return the peak."""
    federation, device = federation_of(experiment), pick_device(experiment.runtime.device)
    sites = map(federation.dealt.site, range(experiment.split.num_clients))
    largest = max(sites, key=lambda data: sum(map(len, data.training)))
    images = torch.cat(largest.training).to(device)
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)
    data = largest.to(device).with_parts(test=Part(images, labels))
    compute = pick_dtype(experiment.runtime.precision, device)
    inputs = tuple(images.shape[1:])
    network = build_model(experiment.model, inputs, len(federation.classes), compute)

    size = experiment.method.images_per_step(experiment.training.batch_size, largest)

    def none_needed(ref: ModelRef) -> Params:
        raise AssertionError(ref)

    context = SiteContext(
        data=data,
        model=network.to(device),
        contents=none_needed,
        kept={},
        training=replace(experiment.training, batch_size=size),
        seed=experiment.seed,
        device=device,
    )
    gpus = range(torch.cuda.device_count() if device.type == "cuda" else 0)
    free = tuple(torch.cuda.mem_get_info(k)[0] for k in gpus)
    batch = images[torch.arange(size, device=device) % len(images)]
    targets = context.one_hot(torch.zeros(size, dtype=torch.int64, device=device))
    task = Task(site=0, round=0, action="train", own=ModelRef(INITIAL_SITE, 0, "0" * 64))
    with torch_threads(experiment.runtime.threads):
        context.evaluate("test")
        context.fit(batch, targets, len(batch), 1, task)
    ram = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + ACTOR
    ram += kept_parsed(experiment, sum(t.nbytes for t in network.state_dict().values()))
    gpu = torch.cuda.max_memory_reserved(device) + CONTEXT if gpus else 0
    return Need(ram, gpu, free)


def kept_parsed(experiment: Experiment, model_bytes: int) -> int:
    """Return the bytes of models that a process keeps parsed in the end (`learn.parsed`).

    At most those of every site and of the server after every round.
    """
    models = (experiment.rounds.num_rounds + 1) * (experiment.split.num_clients + 1)
    return min(models * model_bytes, MEMORY)


if __name__ == "__main__":
    try:
        found = measure(load_experiment(sys.argv[1], parse_overrides(sys.argv[2:])))
    except FedAppError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(asdict(found)))
