"""A watched folder's files are given to training once, in order; a signal ends the wait."""

import os
import signal
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrivals.complete import Arrivals, Rule
from pipeline.arrivals.watch import watch


def write(path):
    pq.write_table(pa.table({"x": [1, 2]}), path.with_suffix(".unfinished"))
    path.with_suffix(".unfinished").rename(path)


def test_files_are_given_once_and_a_failed_training_ends_the_watch(tmp_path):
    given, known = [], set()

    def train(files):
        given.append([file.rpartition("/")[2] for file in files])
        known.update(files)
        if len(given) == 2:
            write(tmp_path / "day-11.parquet")
            write(tmp_path / "day-3.parquet")
        return 7 if len(given) == 3 else 0

    write(tmp_path / "day-2.parquet")
    write(tmp_path / "day-1.parquet")
    known.add(str(tmp_path / "day-1.parquet"))
    said = []
    assert watch(train, Arrivals(str(tmp_path), Rule.of("rename")), lambda: known, said.append, 0.01) == 7
    assert given == [[], ["day-2.parquet"], ["day-3.parquet", "day-11.parquet"]]
    assert said == [f"1 new file: {tmp_path}/day-2.parquet", f"2 new files: {tmp_path}/day-3.parquet ..."]


def test_a_first_training_that_fails_waits_for_nothing(tmp_path):
    assert watch(lambda files: 2, Arrivals(str(tmp_path), Rule.of("rename")), set, print) == 2


def test_ctrl_c_ends_the_wait_with_its_exit_code(tmp_path):
    said = []

    def interrupt():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert watch(lambda files: 0, Arrivals(str(tmp_path), Rule.of("rename")), set, said.append, 0.05) == 130
    thread.join()
    assert "all that came is committed; the same command goes on" in said[0]
