"""The report of a run: one HTML file that needs no network, written while the run trains and by `pipeline report`."""
