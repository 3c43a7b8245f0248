"""`pipeline tune`: studies, in which Optuna proposes settings and each trial trains with them."""
