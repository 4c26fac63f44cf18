"""Settings of every strategy; ``memory_bank.config`` is the place to import them from."""
