"""Load on a server to bytes, bytes to token events, events to a record."""
