"""Does the study keep its word under faults and load? `make torture`: hours, on real processes."""
