"""One machine: an embedded Redis and every stage as a process of its own."""
