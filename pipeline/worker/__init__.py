"""One worker of a run: its tiers, its model, and the stages bound to them."""
