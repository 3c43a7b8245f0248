"""User code: modules of workflow files, and digests of model classes."""
