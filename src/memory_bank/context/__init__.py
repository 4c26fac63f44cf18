"""What goes into the prompt: the plan, its repairs, and the messages rendered from it."""
