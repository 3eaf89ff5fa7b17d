"""Numbers to pictures and prose: looks, figures, and the article as one self-contained page."""
