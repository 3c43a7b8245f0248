"""The stages of the data path, in order. Each is one file with one function of that name.

read        the block's examples, from files                     into a buffer of the read ring
dedup       the block's unique keys, and each batch's index      in place
unite       keys of this worker's shards that all workers need   only with several workers
scan        keys of blocks that come much later, from files      only with the policy "foresight"
plan        sources of arrivals; victims and their destinations  metadata only
prefetch    new rows, and rows from the host and the disk        into a staging buffer
upload      staging to the device                                only if the device has its own memory
train       swap of arrivals and victims, then the block's steps victims into an outgoing buffer
write_back  outgoing rows to the host, the host's victims to disk
"""

STAGES = ("read", "dedup", "unite", "scan", "plan", "prefetch", "upload", "train", "write_back")
