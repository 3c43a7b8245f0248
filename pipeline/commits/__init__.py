"""Commits, the durable state of a run: manifests, writing and opening commits, and checking files for damage.

A commit exists once its manifest has been renamed. All files that the manifest names, and their folders, are fsynced
before the rename; files that no kept commit names are deleted after it. A failed write or fsync is not retried, since
the kernel may have dropped the pages. The bytes of a manifest are a function of its values, which include a checksum of
the others.

Values that are read back are validated against strict models, since a correct checksum does not prove that nobody
edited them. Nothing that a file names is imported or followed.

Readers hold a shared lock on their manifest and write nothing. Training deletes a commit only while holding the
exclusive lock; a commit that it cannot lock is kept, and counts towards the disk cap.
"""
