"""MedMNIST."""
