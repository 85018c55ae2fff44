"""What protects single images or patients: the account of epsilon, keyed noise, DP-SGD."""
