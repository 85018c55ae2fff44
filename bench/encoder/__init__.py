"""What an encoder trained on other data is worth (`python -m bench.encoder --help`)."""
