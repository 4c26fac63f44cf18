"""Who may call the service: hosts, origins, keys, rate limits; and which texts are never stored."""
