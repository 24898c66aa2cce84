"""FedSM: `method` has it, `networks` the one that selects and the one that is taken home, `replies` the soft pull."""
