"""The shared helper module: a floor and four wings that only look down. See CONTRIBUTING.md."""
