"""Every benchmark runs, in its quick form, and ends with the ratios that others read."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRECISIONS = ("float32", "bfloat16")
RATIOS = {
    "end_to_end": {
        "a_vs_c_mlp64",
        "a_vs_d_mlp400",
        "b_vs_a",
        "b_vs_limit",
        "dask_cost",
        "a_vs_best_mlp64_compiled",
        "a_vs_best_mlp400_bf16",
        "a_vs_ceiling_mlp400_bf16",
        "a_vs_eager_peers_mlp400_bf16",
    },
    "disk": {
        "raw_100_cold",
        "raw_1000_warm",
        "zarr_100_warm",
        "zarr_1000_cold_of_50k",
        "append_vs_plain",
        "commit_vs_plain",
        "tag_cost",
    },
    "kernels": {
        "dedup_vs_numpy_1t",
        "dedup_vs_torch",
        "dedup_vs_pyarrow_1t",
        "stage_vs_1t",
        "gather_vs_copy",
        "gather_vs_copy_1t",
        "scatter_vs_copy",
        "scatter_vs_index_copy",
        "random_reads_vs_copy_1t",
        "segment_sum_vs_index_add",
        "adam_vs_sparse_adam",
        "find_vs_dict_1t",
        "find_vs_limit_1t",
    },
    "criteo_shape": {f"{name}_{precision}" for name in ("a_vs_aim", "a_vs_d", "b_vs_a") for precision in PRECISIONS},
    "kernels.gpu": set(),
    "kernels.occupancy": {"most_registers", "most_stack", "least_occupancy"},
    "policies": {"foresight_vs_belady", "saved_vs_lfu", "foresight_less_lfu", "chain_vs_lru"},
    "policies.runs": {"foresight_vs_clock_disk", "lower_end_disk", "foresight_vs_clock_fits", "lower_end_fits"},
    "narrow_rows.runs": {"bfloat16_vs_float32", "lower_end", "rows_from_disk", "bytes_from_disk"},
    "narrow_rows": {"worst_mean", "worst_error", "cells"},
    "large_batch": {"bayes_auc", "base_1", "base_with_clip_1", "none_4", "cowclip_4", "cowclip_warm_up_off_4"},
    "accuracy": {
        "steps_apart_DeepFM",
        "calm_apart_DeepFM",
        "auc_DeepFM",
        "auc_DeepFM_torch",
        "logloss_DeepFM",
        "logloss_DeepFM_torch",
    },
    "kstep": {
        f"auc_{model}_{case}" for model in ("plain", "batch_norm") for case in ("k1", "k5", "local_xv", "synchronous")
    },
    "prepare": {"ours_vs_csv_alone", "ours_split_vs_csv_alone", "ours_vs_csv_and_parquet", "memory_10x_vs_1x", "kills"},
    "serve": {
        "score_vs_evaluation",
        "hit_rate_0.95",
        "p99_50_vs_sum",
        "p99_50_ms",
        "memory_vs_limit_100k",
        "opening_vs_limit_100k",
        "overload_p99_vs_80",
        "overload_rss_mib",
    },
    "scale": {
        "map_bytes_per_key",
        "speed_200k_vs_20k",
        "ram_bytes_per_key",
        "plan_growth_vs_train",
        "longest_plan_ms",
        "longest_insert_ms",
        "open_growth",
        "commit_growth",
        "verify_growth",
    },
    "planner": {"hits_off", "ram_off", "disk_off", "speed_off", "speed_within_20"},
    "planner.sizes": {"chosen_vs_best", "peak_vs_memory"},
    "waits": {"least_found", "named", "most_unattributed"},
    "observer": {"on_vs_off", "lower_end", "observer_share", "page_share"},
    "worker_kills": {"kill", "failures"},
    "workers": {"scaling_1_on_1", "scaling_2_on_2", "measured_vs_model_2_on_2"},
    "doctor": {"recall_100", "recall_10", "recall_1", "precision", "clean_faults"},
    "tested": {"functions", "forms", "orders", "properties"},
    "crash": {"points", "again", "kills", "faults", "flips", "failures"},
}
"""Keys that a benchmark's last line has at least."""


def test_every_benchmark_is_in_this_test():
    """Those that read the command line that all benchmarks share."""
    files = [file for file in (ROOT / "benchmarks").rglob("*.py") if "= arguments(" in file.read_text()]
    names = [".".join(file.relative_to(ROOT / "benchmarks").with_suffix("").parts) for file in files]
    assert {name.removesuffix(".__main__") for name in names} == set(RATIOS)


@pytest.mark.prove
@pytest.mark.parametrize("name", RATIOS)
def test_a_benchmark_runs_and_prints_its_ratios(tmp_path, name):
    before = set(ROOT.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--data", str(tmp_path / "data")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert set(ratios) >= RATIOS[name]
    assert all(isinstance(value, float) and math.isfinite(value) and value >= 0 for value in ratios.values())
    assert set(tmp_path.iterdir()) <= {tmp_path / "data"}, "something was left behind"
    assert set(ROOT.iterdir()) <= before | {ROOT / ".benchmarks"}
