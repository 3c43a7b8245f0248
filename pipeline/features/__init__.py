"""Features: columns that are computed from others, example by example, before they become keys and numbers.

A workflow lists them in `data.features`. Their classes are in `settings.py`; the computation of each kind is in the
module of that name. A feature reads columns of the data, or columns made by earlier features, and makes columns that
`data.numbers`, `data.categories` and `metrics` can name like any other. `Derived` adds them to files and tables, so
that training, scoring and serving share one definition. A feature's output for an example depends only on
that example and the feature's settings.
"""
