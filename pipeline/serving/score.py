"""pipeline score RUN DATA... --out DIR: score Parquet files with a trained model, through the stages of its
own evaluation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipeline.arguments import score_arguments
from pipeline.errors import PipelineError, error_text, refuse_remote
from pipeline.machine.allocator import keep_freed_memory
from pipeline.machine.signals import heed_interrupts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if all files are scored, 1 if scoring failed, 2 if an argument, the commit or the
    data are wrong, 130 after an interrupt. The same command goes on with the files that are left."""
    args = score_arguments().parse_args(argv)
    try:
        refuse_remote("the run", args.run)
        refuse_remote("the data", *args.data)
        refuse_remote("--out", args.out)
        refuse_early(args)
    except (ValueError, OSError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    # These imports take seconds, and --help and a wrong argument need none of them.
    from pipeline.commits.reading import GivenUp
    from pipeline.preflight.sizes import DoesNotFit
    from pipeline.serving.commit import open_commit
    from pipeline.serving.scoring_record import refuse_another

    try:
        opened = open_commit(args.run, args.commit, args.workflow)
        with opened.held as held:
            if not args.fresh:
                refuse_another(args.out, {"commit": held.number})
            # These take longer still, and a wrong path is told without them.
            from pipeline.serving.scoring import ScoringOrder, score

            heed_interrupts()
            keep_freed_memory()
            print(f"commit {held.number}{f' ({held.manifest.name})' if held.manifest.name else ''} of {args.run}")
            said = score(
                opened, ScoringOrder(args.data, args.out, args.keep, args.workers, args.bad_values, args.fresh)
            )
    except (ValueError, OSError, MemoryError) as error:
        hint = f"\n{WITH_CAPS}" if isinstance(error, DoesNotFit) else ""
        print(f"error: {error_text(error)}{hint}", file=sys.stderr)
        return 2
    except PipelineError as error:
        from pipeline.serving.scoring import CapsTooSmall

        next_step = {GivenUp: BEGINS_ANEW, CapsTooSmall: WITH_CAPS}.get(type(error), OTHERS_LATER)
        print(f"error: {error}\n{next_step}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        said = None
    if said is None:
        print(f"interrupted: {GOES_ON}", file=sys.stderr)
        return 130
    print("\n".join(filter(None, (said, f"left in {args.out}"))))
    return 0


def refuse_early(args: argparse.Namespace) -> None:
    """Raises ValueError if --out holds another scoring, as far as the arguments alone say so."""
    if not args.fresh and args.out.exists():
        from pipeline.serving.scoring_record import refuse_another

        known = {"keep": tuple(args.keep), "workers": args.workers or 1, "bad_values": args.bad_values}
        refuse_another(args.out, known)


GOES_ON = "files that are scored stay; the same command goes on with the others"
OTHERS_LATER = "files that are scored stay; once that is corrected, the same command goes on with the others"
WITH_CAPS = "files that are scored stay; the command goes on with the caps of a workflow's file: --workflow FILE"
BEGINS_ANEW = "files that are scored stay; the scores of another commit need another folder (--out), or --fresh"


if __name__ == "__main__":
    sys.exit(main())
