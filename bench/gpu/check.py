"""Whether a machine has what the benchmark needs. Imports nothing that could be missing there."""

from importlib.util import find_spec

NEEDED = {
    "filelock": "filelock",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "typer": "typer",
    "yaml": "PyYAML",
}
"""Module -> package, of the core and the loopback driver."""
OF_TESTS = {"hypothesis": "hypothesis", "pytest": "pytest", "pytest_timeout": "pytest-timeout"}
"""Module -> package, of the tests."""
LEAST_TORCH = (2, 11)


def missing() -> list[str]:
    """Return a line for each package without which nothing runs."""
    return _absent(NEEDED)


def missing_for_tests() -> list[str]:
    """Return a line for each package without which the tests do not run."""
    return _absent(OF_TESTS)


def card() -> dict[str, str | float | int | None]:
    """Return the facts of the GPU, or of the machine without one."""
    import torch

    facts: dict[str, str | float | int | None] = {"torch": torch.__version__}
    facts["torch is new enough"] = str(_release(torch.__version__) >= LEAST_TORCH)
    if not torch.cuda.is_available():
        return {"card": "none", **facts}
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    return {
        "card": properties.name,
        **facts,
        "CUDA of torch": torch.version.cuda,
        "compute capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory, GiB": round(total / 2**30, 1),
        "free memory, GiB": round(free / 2**30, 1),
        "bfloat16": str(torch.cuda.is_bf16_supported()),
    }


def _absent(packages: dict[str, str]) -> list[str]:
    return [
        f"{package}: pip install --no-index --find-links FOLDER {package}"
        for module, package in packages.items()
        if find_spec(module) is None
    ]


def _release(version: str) -> tuple[int, int]:
    """2.12.1+cu130 -> (2, 12)."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
