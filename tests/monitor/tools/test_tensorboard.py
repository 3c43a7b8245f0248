"""`pipeline to-tensorboard`: TensorBoard's own reader finds each point once."""

import pytest
from support.runs.session_lines import append, begin, ended, evaluated, tick, two_sessions, write_run

from pipeline.__main__ import main
from pipeline.monitor import command as module
from pipeline.monitor.tools.reader import Curves


def read(folder):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    found = accumulators.EventAccumulator(str(folder), size_guidance={accumulators.SCALARS: 0}).Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(lines):
    curves, found = Curves(), {}
    for line in lines:
        for point in curves.of(line):
            found.setdefault(point.name, []).append((point.step, pytest.approx(point.value, rel=1e-6), point.at))
    return found


def test_tensorboard_reads_a_run_also_after_it_was_resumed(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    lines = two_sessions()
    run = write_run(tmp_path / "run", lines[:8])
    for written in (lines[:8], lines[:8], lines):
        append(run, written[8:])
        assert main(["to-tensorboard", str(run)]) == 0
        assert read(run / "tensorboard") == expected(written)
    assert f"tensorboard --logdir {run / 'tensorboard'}" in capsys.readouterr().out


def test_a_run_is_followed_next_to_files_of_others(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    lines = [begin(), tick(1.0, 100), evaluated(1.5, 100), ended(2.0)]
    run, folder = write_run(tmp_path / "run", lines), tmp_path / "logs"
    folder.mkdir()
    (folder / "events.out.tfevents.1.other").write_bytes(b"")
    assert main(["to-tensorboard", str(run), "--follow", "--out", str(folder)]) == 0
    assert read(folder) == expected(lines)
    assert (folder / "events.out.tfevents.1.other").exists()


def test_an_absent_package_is_named_with_its_install_command(tmp_path, capsys, monkeypatch):
    run = write_run(tmp_path / "run", two_sessions())
    monkeypatch.setattr(module, "find_spec", lambda module: None)
    for command, extra in (("to-tensorboard", "tensorboard"), ("to-mlflow", "mlflow")):
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err
        assert f"the package {extra} is not installed: pip install 'ctr-pipeline[{extra}]'" in said


@pytest.mark.parametrize("command", ["to-tensorboard", "to-mlflow"])
def test_a_folder_without_a_run_is_an_error(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_what_was_read_until_then(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    lines = [begin(), tick(1.0, 100)]

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    run = write_run(tmp_path / "run", lines)
    assert main(["to-tensorboard", str(run), "--follow"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert read(run / "tensorboard") == expected(lines)
