"""The recommended method: prior shift, with the closed form beside the network."""
