"""The command `fedapp`, also `python -m fedapp`: the command line, where what it needs is there."""

import sys


def main() -> None:
    """Entry point; a package that is not installed is one line and exit code 2."""
    try:
        from fedapp.cli import main as command_line

        command_line()  # commands import what they need themselves
    except ModuleNotFoundError as error:
        if (error.name or "fedapp").partition(".")[0] == "fedapp":
            raise  # a fault of ours
        print(
            f"fedapp: {error.name} is not installed: install this package with what it needs, "
            "`pip install .` in its checkout (with uv: `uv pip install --no-config .`)",
            file=sys.stderr,
        )
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
