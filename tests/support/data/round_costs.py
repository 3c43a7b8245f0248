"""A made-up machine and workflow with round numbers as costs."""

from pipeline.planner.machine import Machine
from pipeline.planner.timing import Cost
from pipeline.planner.work import Work

MACHINE = Machine(
    name="made up", cores=4, ram=1 << 40, price_per_hour=36.0, scattered_read_seconds=1e-3,
    disk_read_bytes_per_second=1e6, disk_write_bytes_per_second=1e5, fsync_seconds=0.5, cached_read_seconds=1e-6,
    copy_bytes_per_second=1e6, find_seconds=1e-3, plan_key_seconds=1e-3, plan_row_seconds=2e-3,
    victim_seconds=1e-6, block_seconds=0.25, dask_bytes=1 << 20, process_bytes=1 << 20,
    network_bytes_per_second=1e6, message_seconds=1e-3,
)  # fmt: skip
WORK = Work(
    values_of_example=5.0, example_bytes=100.0, keys_of_batch=10.0, read_example=Cost(0.01, 0.01),
    dedup_value=Cost(0.001, 0.001), first_row=Cost(0.01, 0.01), train_batch=Cost(2.0, 3.0), score_batch=Cost(1.0, 1.0),
    compile_seconds=7.0, slowdown=0.5, process_bytes=1 << 20,
)  # fmt: skip
