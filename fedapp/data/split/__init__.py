"""Who holds what: a pool of inputs is dealt to sites, to training, validation and test, to bags."""
