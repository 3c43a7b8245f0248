"""The report at the end of a preparation says what is in each split, what was left out, and what to do next."""

import pytest
from support.data.preparations import SPLIT, prepare, write_lines


def reported(capsys, format, source, out, *more):
    """Lines of the report: of the preparation itself, and of the same command when all is finished."""
    found = []
    for _ in range(2):
        capsys.readouterr()
        assert prepare(format, source, out, *more) == 0
        found.append(capsys.readouterr().out.splitlines()[1:])
    assert found[0] == found[1]
    return found[0]


def test_each_split_is_reported_with_rows_positives_and_span(tmp_path, capsys):
    source = write_lines(tmp_path / "log", "avazu", 500)
    split = ("--split", "time:hour,validation_from=14102800,test_from=14102900", "--piece-size", "8 KiB")
    head, *rows, _ = reported(capsys, "avazu", source, tmp_path / "out", *split)
    assert head.endswith("hour from .. to")
    lines = [line.split(",") for line in source.read_text().splitlines()[1:]]
    for row, (name, begin, end) in zip(rows, (("train", 0, 28), ("validation", 28, 29), ("test", 29, 99)), strict=True):
        ours = [line for line in lines if begin <= int(line[2][4:6]) < end]
        hours, positives = sorted(line[2] for line in ours), sum(line[1] == "1" for line in ours)
        rate = f"({positives / len(ours):.2%})"
        assert row.split() == [name, f"{len(ours):,}", f"{positives:,}", rate, hours[0], "..", hours[-1]]


def test_the_workflow_is_named_and_not_printed(tmp_path, capsys):
    source = write_lines(tmp_path / "log", "criteo", 100)
    lines = reported(capsys, "criteo", source, tmp_path / "an out", *SPLIT)
    workflow = tmp_path / "an out" / "_workflow.py"
    assert lines[-1] == f"workflow: {workflow}; pipeline run '{workflow}' trains it"
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("bad", "said"),
    [(b"", "0 of 100 lines"), (b"x\n", "1 of 101 lines, in 1 of 1 files; _prepared.json says how many of each")],
)
def test_the_report_says_how_many_lines_were_skipped(tmp_path, capsys, bad, said):
    source = write_lines(tmp_path / "log", "criteo", 100)
    source.write_bytes(source.read_bytes() + bad)
    assert f"skipped as bad: {said}" in reported(capsys, "criteo", source, tmp_path / "out", "--skip-bad", 0.1)
