"""What this process may take of a machine, from trees of files as the system has them."""

import os

import pytest

from pipeline.device.device import RAM
from pipeline.machine.limits import cpus, free_memory, memory, memory_limits
from pipeline.preflight.check_model import check_memory
from pipeline.preflight.sizes import with_device_in_bytes
from pipeline.prepare.arguments import prepare_arguments
from pipeline.workflow import Schedule

GIB = 1 << 30
MEMINFO = f"""\
MemTotal:       {64 << 20} kB
MemFree:        {20 << 20} kB
MemAvailable:   {48 << 20} kB
HugePages_Total:       0
"""
MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
30 23 0:26 {top} {at} rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""


@pytest.fixture
def machine(tmp_path):
    """Writes the files of a tree, 64 GiB and 48 of them available, and gives its root."""

    def write(groups, mounts, files):
        tree = {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}
        for name, text in tree.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}".rstrip() + "\n")
        return tmp_path

    return write


def group(folder, limit="max", used=0, unused=0, cpu="max 100000"):
    """Files of a control group; the highest of the machine has none of them."""
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": used,
        f"{folder}/memory.stat": f"anon 5\nfile 7\nactive_file 3\ninactive_file {unused}",
        f"{folder}/cpu.max": cpu,
    }


def test_without_limits_all_memory_and_allowed_cpus_count(machine):
    root = machine("0::/", MOUNTS.format(top="/", at="/sys/fs/cgroup"), {})
    assert (memory(root), memory_limits(root), free_memory(root)) == (64 * GIB, {0: 64 * GIB}, 48 * GIB)
    assert cpus(root, {0, 1, 5}) == 3
    assert cpus(root) == len(os.sched_getaffinity(0))


def test_a_system_without_control_groups_has_no_limits(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert (memory(tmp_path), free_memory(tmp_path), cpus(tmp_path, {0})) == (64 * GIB, 48 * GIB, 1)


@pytest.mark.parametrize(
    ("path", "top", "folder"),
    [
        ("/", "/", ""),
        ("/system.slice/docker-0f3a.scope", "/system.slice/docker-0f3a.scope", ""),
        # Seen from outside of the namespace's group, and a path that the mount does not have.
        ("/../../user.slice", "/", ""),
        ("/0f3a", "/..", ""),
        ("/kubepods/pod3/0f3a", "/docker/else", ""),
        ("/system.slice/docker-0f3a.scope", "/", "/system.slice/docker-0f3a.scope"),
    ],
)
def test_limits_of_a_container_are_found(machine, path, top, folder):
    files = group(f"sys/fs/cgroup{folder}", 8 * GIB, used=7 * GIB, unused=2 * GIB, cpu="50000 100000")
    root = machine(f"0::{path}", MOUNTS.format(top=top, at="/sys/fs/cgroup"), files)
    assert (memory(root), free_memory(root), cpus(root, range(16))) == (8 * GIB, 3 * GIB, 1)


def test_the_tightest_of_nested_limits_holds_for_memory_and_cpus(machine):
    """The slice of a user has 24 GiB, of which 20 are used; one service below 30 GiB, of which it uses one."""
    user = "sys/fs/cgroup/user.slice/user-1000.slice"
    files = (
        group("sys/fs/cgroup/user.slice", used=21 * GIB, cpu="1600000 100000")
        | group(user, 24 * GIB, used=20 * GIB, unused=GIB, cpu="400000 100000")
        | group(f"{user}/user@1000.service", 30 * GIB, used=GIB)
        | group(f"{user}/user@1000.service/train.scope", used=GIB)
    )
    groups = "0::/user.slice/user-1000.slice/user@1000.service/train.scope"
    root = machine(groups, MOUNTS.format(top="/", at="/sys/fs/cgroup"), files)
    assert (memory(root), free_memory(root), cpus(root, range(16))) == (24 * GIB, 5 * GIB, 4)
    number = (root / user).stat().st_ino
    assert memory_limits(root)[number] == 24 * GIB
    assert sorted(memory_limits(root).values()) == [24 * GIB, 30 * GIB, 64 * GIB]


def test_a_mount_whose_name_has_blanks_is_found(machine):
    mounts = MOUNTS.format(top="/a\\040b", at="/my\\040groups")
    root = machine("0::/a b/c", mounts, group("my groups/c", GIB))
    assert memory(root) == GIB


@pytest.mark.parametrize(("used", "available"), [(2 * GIB, 0), (GIB // 4, 3 * GIB // 4)])
def test_free_memory_is_between_zero_and_what_the_machine_has(machine, used, available):
    """A limit may have been lowered below what is used already."""
    root = machine("0::/", MOUNTS.format(top="/", at="/sys/fs/cgroup"), group("sys/fs/cgroup", GIB, used=used))
    assert free_memory(root) == available
    root = machine("0::/", MOUNTS.format(top="/", at="/sys/fs/cgroup"), group("sys/fs/cgroup", 60 * GIB))
    assert free_memory(root) == 48 * GIB


def test_limits_of_this_machine_are_plausible():
    assert 1 << 28 < free_memory() < memory() < 1 << 50
    assert 1 <= cpus() <= len(os.sched_getaffinity(0))


def test_caps_shares_and_thread_counts_follow_the_limits(machine, small_workflow, monkeypatch):
    files = group("sys/fs/cgroup", GIB, used=GIB // 2, cpu="700000 100000")
    root = machine("0::/", MOUNTS.format(top="/", at="/sys/fs/cgroup"), files)
    for function in (memory, free_memory, cpus):
        monkeypatch.setattr(function, "__defaults__", (root, *(function.__defaults__ or ())[1:]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    assert Schedule(batch_size=1).threads == 7
    assert prepare_arguments().parse_args(["criteo", "a", "--out", "b"]).workers == 7
    assert RAM.free_bytes() == GIB // 2
    share = with_device_in_bytes(small_workflow(storage={"device": 0.8}).storage, RAM.free_bytes())
    check_memory(share, RAM)
    with pytest.raises(
        ValueError, match=r"add up to .* and this machine has 1 GiB within the limits of its control groups"
    ):
        check_memory(small_workflow(storage={"device": "900 MiB"}).storage, RAM)
    with pytest.raises(ValueError, match="map of 3 workers add up to"):
        check_memory(share, RAM, 3)
