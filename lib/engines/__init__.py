"""How each engine is built, started, proven, spoken to and ended."""
