"""Sites send class prototypes, by which others label their images (docs/research/prototypes.md)."""
