"""`pipeline tune`: a study of trainings with other settings, by Optuna."""
