"""Commits, which outlive a run: manifests, writing a commit, opening one, checking files for damage.

A commit exists once its manifest has been renamed. Everything that the manifest names, and the folders that hold it,
are fsynced before the rename; files that no kept commit names are deleted after it. A failed write or fsync is not
repeated, since the kernel may have dropped the pages. A manifest's bytes are a function of its values, one of which is
a checksum of the others.

What is read back is checked against strict models, because a correct checksum does not show that nobody changed the
values. Nothing that a file names is imported or followed.

Readers hold a shared lock on their manifest and write nothing. Training deletes a commit only with the exclusive lock;
a commit that it cannot lock is kept, and counts towards the disk's cap.
"""
