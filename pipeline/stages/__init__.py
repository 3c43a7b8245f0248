"""The data path, in order: each stage is one file with one function of that name.

read        files to the block's examples                       into a buffer of the read ring
dedup       the block's unique keys, each batch's index          in place
unite       the keys that all workers need of one's own shards   only where there are several
plan        who comes from where, who leaves, where to           metadata only
prefetch    new, host and disk rows                              into a staging buffer
upload      staging to the device                                only where the device has its own memory
train       swap rows in and out, then the block's steps         victims into an outgoing buffer
write_back  outgoing rows to the host, the host's victims to disk
"""

STAGES = ("read", "dedup", "unite", "plan", "prefetch", "upload", "train", "write_back")
