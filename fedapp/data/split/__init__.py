"""How a pool of inputs is split: over sites, over training, validation and test, and into bags."""
