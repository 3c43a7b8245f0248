"""Features: columns that are computed from other columns, example by example, before they become keys and numbers.

A workflow lists features in `data.features`; each class has its file here. A feature reads columns of the data, or
columns made by earlier features, and makes columns that `data.numbers`, `data.categories` and `metrics` can name like
any other. `Derived` adds them to files and tables, so that training, scoring, serving and the doctor share one
definition. The output of a feature for an example depends only on that example and the feature's settings.
"""
