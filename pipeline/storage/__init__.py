"""The three tiers, the key map, and the policies that choose victims."""
