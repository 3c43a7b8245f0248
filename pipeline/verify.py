"""The command `verify`: check that all committed bits of a run, or all bits of a servable, are intact."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.arguments import verify_arguments
from pipeline.commits.inspect import (
    Defect,
    check_chunk,
    check_small_files,
    missing_shards,
    named_chunks,
    older_descriptions,
    read_manifests,
    unnamed,
)
from pipeline.commits.manifest import Commits, Manifest
from pipeline.commits.reopen import keep_only
from pipeline.commits.run_state import read_state
from pipeline.driver.result import check_outputs
from pipeline.machine.signals import run_command
from pipeline.monitor.redrawn import track
from pipeline.serving.open_servable import check_servable
from pipeline.serving.servable import SERVABLE_MANIFEST
from pipeline.storage.files import Damaged, Files, refuse_links
from pipeline.storage.lock import RunLock
from pipeline.storage.log import folders_of
from pipeline.storage.shards import Shards


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if all commits are intact, or if --repair went back to an intact one; 1 if something
    is damaged or missing; 2 if there is no run to check; 130 if interrupted."""
    args = verify_arguments().parse_args(argv)
    return run_command(lambda: verify_command(args.run, args.repair), "nothing is lost; repeat the command", heeds=True)


def verify_command(folder: Path, repair: bool) -> int:
    """Check a run or a servable. Returns the exit code."""
    if (folder / SERVABLE_MANIFEST).is_file():
        return verify_servable(folder)
    if not (folder / "commits").is_dir():
        raise ValueError(f"{folder} holds no run: it has no folder `commits`; name the folder of a run")
    with RunLock(folder, reads=not repair):
        return verify(folder, repair)


def verify_servable(folder: Path) -> int:
    """Check every bit of a servable, and print what is wrong. Returns the exit code."""
    try:
        findings = list(check_servable(folder))
    except Damaged as damaged:
        findings = [str(damaged)]
    print("\n".join([*findings, f"the servable is {'damaged: export it again' if findings else 'intact'}"]))
    return 1 if findings else 0


def verify(run_dir: Path, repair: bool = False) -> int:
    """Check every file that a commit names, and print what is wrong. Returns the exit code."""
    commits = Commits(run_dir, Files(), keep=1)
    manifests, findings = read_manifests(commits)
    if manifests:
        refuse_links(folders_of(run_dir / "table.zarr", Shards.all(manifests[-1].num_shards)))
    findings += list(impossible_states(commits, manifests))
    missing = dict(missing_shards(run_dir, manifests))
    findings += [*missing.values(), *check_small_files(run_dir, commits, manifests, missing)]
    for chunk, numbers in track(named_chunks(manifests, missing), "verifying"):
        findings += check_chunk(run_dir, manifests[-1], chunk, numbers)
    left = list(check_outputs(run_dir, manifests[-1])) if manifests else []
    for name, what in left:
        print(f"{run_dir / name}: {what}; the same command as before writes it again")
    for finding in findings:
        print(f"{finding.file}: {finding.what}{_of(finding)}")
    for path in older_descriptions(run_dir, manifests):
        print(f"{path}: describes an older commit to Zarr readers, or is damaged; resuming the run writes it again")
    for path in unnamed(run_dir, commits, manifests):
        print(f"{path}: no commit names it; resuming the run deletes it, if it has the name of a commit or a chunk")
    damaged = {number for finding in findings for number in finding.commits}
    whole = [m for m in manifests if m.number not in damaged]
    print(f"{len(whole)} of {len(commits.numbers())} commits are intact: {_numbers(m.number for m in whole) or '-'}")
    if not findings and not manifests:
        print(f"{run_dir} has no commit: the run ended before its first one")
        return 1
    if not findings:
        return int(bool(left))
    return max(roll_back(run_dir, commits, whole), bool(left)) if repair else 1


def impossible_states(commits: Commits, manifests: Iterable[Manifest]) -> Iterator[Defect]:
    """Yield findings for manifests with correct checksums but a state that no run can resume from."""
    for manifest in manifests:
        try:
            read_state(manifest.state)
        except ValueError as error:
            yield Defect(commits.manifest_file(manifest.number), f"state.{error}", (manifest.number,))


def _of(finding: Defect) -> str:
    return f" (commits {_numbers(finding.commits)})" if finding.commits else ""


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def roll_back(run_dir: Path, commits: Commits, whole: Sequence[Manifest]) -> int:
    """Delete all commits that are not intact, and the files that only these need. Returns the exit code."""
    if not whole:
        print("no commit is intact: nothing was changed; start over with --fresh", file=sys.stderr)
        return 1
    keep_only(run_dir, commits, whole)
    print(f"went back to commit {whole[-1].number}: the run resumes from there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
