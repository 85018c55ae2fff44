"""What a GPU makes of it, in pieces that a machine lent for ten minutes at a time can do.

`python -m bench.gpu [PIECE ...] [key=value ...] [--quick] [--minutes N] [--out FOLDER]
[--numbers CSV]`

    check   the card, and the packages that are missing
    tests   the tests that need a GPU
    speed   rates of scoring and training, beside a large product
    ways    training step by step and recorded, scoring in turn, as one batch and recorded
    groups  a step of many sites: one after the other, recorded, and as one batch
    sites   rounds with 1, 2, 4 and 8 sites at a time
    paper   the paper's Fashion-MNIST setting, six methods
    table   what came of it beside the paper's numbers

Without a piece: all, in this order. What is done lies in the folder and is not done again, so the
same command goes on after `--minutes`, or after it was killed. Exit code 75: there is more to do.
`--quick`: digits and a tiny network on the CPU; nothing is written to bench/results, nor anywhere
else without `--out`.
"""

import sys

from bench.gpu.check import missing

if __name__ == "__main__":
    if lines := missing():
        print(f"bench.gpu: packages are missing: {'; '.join(lines)}", file=sys.stderr)
        raise SystemExit(2)
    import typer  # it and the rest need the packages

    from bench.gpu.main import main

    typer.run(main)
