"""pipeline score RUN DATA... --out DIR: score Parquet files with a trained model, using its evaluation stages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipeline.arguments import score_arguments
from pipeline.errors import COPY_IT, refuse_remote
from pipeline.machine.process import keep_freed_memory
from pipeline.machine.signals import heed_interrupts, run_command
from pipeline.serving.scoring_record import refuse_another


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if all files are scored, 1 if scoring failed, 2 if an argument, the commit or the
    data are wrong, 130 after an interrupt. The same command scores the remaining files."""
    args = score_arguments().parse_args(argv)
    return run_command(lambda: score_command(args), STAYS)


def score_command(args: argparse.Namespace) -> str | None:
    """Score according to the arguments. Returns the last lines to print; None after an interrupt."""
    refuse_remote("the run", args.run)
    refuse_remote("--out", args.out, way=COPY_IT)
    if not args.fresh:
        # Check what the arguments alone can show, since what follows takes seconds.
        known = {"keep": tuple(args.keep), "workers": args.workers or 1, "bad_values": args.bad_values}
        refuse_another(args.out, known)
    from pipeline.serving.commit import open_commit

    with (opened := open_commit(args.run, args.commit, args.workflow)).held as held:
        # These imports take even longer; a wrong path is reported before them.
        from pipeline.serving.scoring import ScoringOrder, score

        heed_interrupts()
        keep_freed_memory()
        print(f"commit {held.number}{f' ({held.manifest.name})' if held.manifest.name else ''} of {args.run}")
        order = ScoringOrder(args.data, args.out, args.keep, args.workers, args.bad_values, args.fresh)
        metrics = score(opened, order)
    return None if metrics is None else "\n".join(filter(None, (metrics, f"written to {args.out}")))


STAYS = "scored files stay, and the same command scores the others; --workflow FILE sets other caps"

if __name__ == "__main__":
    sys.exit(main())
