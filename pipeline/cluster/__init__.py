"""Dask: where stages run, in this process or in workers of their own. Nothing else imports it."""
