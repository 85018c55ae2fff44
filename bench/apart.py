"""`python -m bench.apart FOLDER MODULE [ARGUMENT ...]`: a benchmark with its results in FOLDER."""

import runpy
import sys
from pathlib import Path

from bench import record


def main() -> None:
    """Run the module as `python -m MODULE ARGUMENT ...` would."""
    _, folder, module, *arguments = sys.argv
    record.RESULTS = Path(folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
