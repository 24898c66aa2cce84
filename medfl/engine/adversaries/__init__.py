"""Poisoning attacks in simulated federations: base classes of the attacks, and the attackers of a simulation."""
