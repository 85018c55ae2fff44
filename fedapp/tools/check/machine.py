"""Checks a site's machine: free disk space for models, a GPU, a connection to the server."""

import os
import shutil
import socket
from pathlib import Path

import torch

from fedapp.core.errors import ConfigError
from fedapp.core.formatting import size
from fedapp.core.optional_dependencies import NotInstalled, needs
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks.base import Network
from fedapp.tools.check.remarks import Remark, fault, note

PATIENCE_S = 5.0
"""Seconds to wait for a connection to the server."""
_LEAST_FREE = 10**9
"""Bytes of disk that should be free if the experiment is not known."""
_SPARE = 3
"""Models beside the helper list: the site's old one, its new one and one being received."""


def room(
    folder: Path, experiment: Experiment | None, network: Network | None
) -> tuple[str, list[Remark]]:
    """Return the free disk space for models in words, and faults if it is too little.

    network: the agreed one; None: not known, or it cannot be built here.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.isdir(path))
    free, needed = shutil.disk_usage(there).free, _LEAST_FREE
    said = f"{size(free)} free in {there}"
    if experiment is not None and network is not None:
        needed = _needed(experiment, network)
        said += f", about {size(needed)} needed"
    found = []
    if free < needed:
        remedy = "free space, or name another folder (store-path of the node)"
        found.append(fault(f"{there}: {size(free)} free, {size(needed)} needed", remedy))
    if not os.access(there, os.W_OK):
        remedy = "let the user who runs the node write there, or name another folder (store-path)"
        found.append(fault(f"{there}: not writable", remedy))
    return said, found


def gpu(device: str) -> tuple[str, list[Remark]]:
    """Return the GPU in words, and a fault if it is missing but `runtime.device` asks for it."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return f"{name}, {size(free)} of {size(total)} free", []
    if device == "cuda":
        remedy = "install a CUDA build of PyTorch and NVIDIA's driver, or set runtime.device=auto"
        return "none", [fault("no GPU, but runtime.device = 'cuda'", remedy)]
    remedy = "the site trains on the CPU, which may make others wait"
    return "none", [note("no GPU that PyTorch can use", remedy)]


def noise() -> tuple[str, list[Remark]]:
    """Return what accounts for noise, in words, and a fault if it is not installed."""
    try:
        needs("privacy", "dp_accounting")
    except NotInstalled as error:
        return "cannot be made", [fault(f"privacy.epsilon: {error.what}", error.remedy)]
    return "accounted for by dp_accounting", []


def address(server: str) -> str:
    """Return host:port of an address, which may be written as https://host:port/."""
    return server.removeprefix("https://").removesuffix("/")


def reach(server: str) -> tuple[str, list[Remark]]:
    """Try to connect to host:port; return the result in words, and a fault if it failed.

    Raises ConfigError if `server` is not host:port.
    """
    server = address(server)
    host, colon, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # as IPv6 addresses are written
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ConfigError(f"--server {server!r}: must be host:port, such as fl.example.org:8443")
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S):
            return f"{server} answers; certificates and keys are checked when the node starts", []
    except socket.gaierror:
        what, remedy = "no such host name", "check the name, or this machine's DNS"
    except ConnectionRefusedError:
        what, remedy = "nothing listens there", "check the port, and that the server runs"
    except TimeoutError:
        what = f"silent for {PATIENCE_S:g} s"
        remedy = "have outgoing connections to it allowed by the firewall"
    except OSError as error:
        what, remedy = error.strerror or str(error), "check this machine's network"
    return f"{server} cannot be reached", [fault(f"server {server}: {what}", remedy)]


def _needed(experiment: Experiment, network: Network) -> int:
    """Return the bytes of all models that a site keeps at the same time."""
    method = experiment.method
    model = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    listed = getattr(method, "helper_list_size", 1) + getattr(method, "num_replaced", 0)
    return int(model * (listed + _SPARE))
