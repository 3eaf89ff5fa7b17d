"""What leaves the house: the site with manifest and archive, the check of a copy, and two runs side by side."""
