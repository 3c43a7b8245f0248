"""The three tiers, the map, and what decides who leaves."""
