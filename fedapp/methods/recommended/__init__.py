"""What we recommend: prior shift, with the closed form beside the model."""
