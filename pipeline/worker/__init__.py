"""One worker of a run: its tiers, its model, and the stages that use them."""
