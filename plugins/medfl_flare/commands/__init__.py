"""Commands ``medfl federate`` and ``medfl site``."""
