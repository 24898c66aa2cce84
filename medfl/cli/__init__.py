"""The command line ``medfl``, one module for each command of the core."""
