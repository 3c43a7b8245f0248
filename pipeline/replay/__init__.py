"""Replay: plans and commits of a run on keys alone, to find the hits of each tier without training.

engine      simulation of a run with any sizes and policies      on the keys of a trace
record      exact replay of a trained run                        from its record, stretches.jsonl
trace       the keys of each block, by owner                     from files
sample      a share of the keys, and estimates for all of them
belady      the bound on the hits of any policy
key_tiers   tiers whose rows contain only keys                   moved by the stages and commits of a run
grid        several sizes and policies side by side              reads the data once
command     body of `pipeline replay`, and the table that it prints
"""
