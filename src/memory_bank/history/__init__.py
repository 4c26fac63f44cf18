"""What was said, without side effects: parsing, identity, counting and shortening of messages."""
