"""The evidence meter: which share of the values that later calls need a context keeps, and at what price."""
