"""Replay: plans and commits of a run on keys alone, to find the hits of each tier without training.

engine      a run of any sizes and policies, simulated          with the keys of a trace
record      a run that was trained, exactly                      by its record, stretches.jsonl
trace       the keys of each block, by owner                     from files
sample      a share of the keys, and estimates for all of them
belady      the bound on the hits of any policy
key_tiers   tiers whose rows are keys alone                      moved by the stages and commits of a run
grid        several sizes and policies side by side              the data is read once
command     what `pipeline replay` does, and the table that it prints
"""
