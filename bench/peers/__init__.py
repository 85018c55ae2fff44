"""FedAvg side by side: this project, a bare PyTorch loop, and other simulators from checkouts."""
