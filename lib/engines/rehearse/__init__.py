"""Stand-ins for engines that need GPUs: the same command lines, the same streams, no model. For rehearsals only."""
