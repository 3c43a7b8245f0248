"""What is wrong with files, piece by piece."""

import pytest
from support.oracle.data_path import Machine

from pipeline.commits.inspect import check_chunk, named_chunks
from pipeline.storage.files import checksum
from pipeline.storage.log import rows_file

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


@pytest.mark.parametrize("at", [5, -1])
def test_a_wrong_row_under_a_right_checksum_is_found(made, at):
    """A word of a row, or the last byte of a file that is one byte too long."""
    run_dir, manifests = made
    (chunk, numbers), *_ = named_chunks(manifests).items()
    file = rows_file(run_dir / "table.zarr", chunk.number)
    content = bytearray(file.read_bytes())
    if at < 0:
        content += b"x"
    else:
        content[at] ^= 8
    file.write_bytes(content)
    forged = chunk._replace(rows_checksum=checksum(content))
    (finding,) = check_chunk(run_dir, manifests[-1], forged, numbers)
    assert finding.file == file
    assert ("which no chunk has" if at < 0 else "its checksum is right, but") in finding.what
