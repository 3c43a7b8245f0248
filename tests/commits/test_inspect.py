"""What is wrong with files, piece by piece."""

import numpy as np
import pytest
from support.oracle.data_path import Machine, read

from pipeline.commits.inspect import check_chunk, lost_keys, named_chunks
from pipeline.storage.log import keys_file, rows_file

CHUNK = 4


@pytest.fixture
def made(tmp_path):
    """Two commits of twenty keys, the second of which has ten of them again."""
    machine = Machine(tmp_path / "table.zarr", 30, 0, CHUNK, multiple=100.0)
    machine.train(range(20))
    first = machine.commit(1, forget=False)
    machine.train(range(10))
    second = machine.commit(2, forget=False)
    machine.close()
    return tmp_path, [first, second]


def check(run_dir, manifests, number):
    states = {chunk.number: (chunk, numbers) for chunk, numbers in named_chunks(manifests).items()}
    return check_chunk(run_dir, manifests[-1], *states[number])


def test_a_chunk_is_named_once_with_all_its_commits(made):
    _, manifests = made
    named = named_chunks(manifests)
    both = {c.number for c in manifests[0].chunks} & {c.number for c in manifests[1].chunks}
    assert both
    assert {chunk.number: numbers for chunk, numbers in named.items()} == {
        **{c.number: (1,) for c in manifests[0].chunks}, **{c.number: (2,) for c in manifests[1].chunks},
        **dict.fromkeys(both, (1, 2)),
    }  # fmt: skip
    assert [chunk.number for chunk in named] == sorted(chunk.number for chunk in named)


@pytest.mark.parametrize("file_of", [rows_file, keys_file])
def test_a_flipped_bit_is_found_and_blames_only_its_row(made, file_of):
    run_dir, manifests = made
    number = manifests[0].chunks[1].number
    naming = tuple(n for n, manifest in enumerate(manifests, 1) if number in {c.number for c in manifest.chunks})
    assert check(run_dir, manifests, number) == ([], None)
    file = file_of(run_dir / "table.zarr", number)
    content = file.read_bytes()
    keys = np.frombuffer(keys_file(run_dir / "table.zarr", number).read_bytes(), np.uint64)
    for at in range(0, len(content), 3):
        file.write_bytes(content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :])
        findings, bad = check(run_dir, manifests, number)
        assert [finding.file for finding in findings] == [file]
        assert findings[0].commits == naming
        row = at * CHUNK // len(content)
        assert (bad.rows_N.tolist(), bad.keys_N.tolist()) == ([row], [int(keys[row])])


def test_a_missing_file_names_the_keys_of_its_chunk(made):
    run_dir, manifests = made
    number = manifests[0].chunks[2].number
    keys = np.frombuffer(keys_file(run_dir / "table.zarr", number).read_bytes(), np.uint64)
    for file_of in (rows_file, keys_file):
        file = file_of(run_dir / "table.zarr", number)
        content = file.read_bytes()
        file.unlink()
        findings, bad = check(run_dir, manifests, number)
        assert [(finding.file, finding.what) for finding in findings] == [(file, "is missing")]
        assert bad.keys_N.tolist() == keys.tolist()
        file.write_bytes(content)


def test_a_commit_loses_only_keys_whose_rows_in_it_are_bad(made):
    """All of the second commit's new rows are bad: the first one has these keys, and the second one the others."""
    run_dir, (first, second) = made
    positions = {m.number: read(run_dir / "table.zarr", m)[1] for m in (first, second)}
    new = sorted({position // CHUNK for position in positions[2].values()} - {c.number for c in first.chunks})
    bad = {}
    for number in new:
        rows_file(run_dir / "table.zarr", number).unlink()
        bad[number] = check(run_dir, [first, second], number)[1]
    keys = np.arange(20, dtype=np.uint64)
    assert lost_keys(run_dir, first, bad, keys) == (20, 0)
    assert lost_keys(run_dir, second, bad, keys) == (20, 10)
