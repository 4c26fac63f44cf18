"""The instrument: what share of the values that next calls need does a context keep, and at what price."""
