"""Features: columns that are computed from others, example by example, before they become keys and numbers.

A workflow lists them in `data.features`. Their classes are in `settings.py`, and what a kind computes is in the file of
its name. A feature reads columns of the data, or those that features before it make, and makes columns that
`data.numbers`, `data.categories` and `metrics` name like any other. `Derived` adds them to files and tables, so that
training, scoring, serving and the doctor share one definition.
What a feature makes of an example depends on that example and the feature's settings alone.
"""
