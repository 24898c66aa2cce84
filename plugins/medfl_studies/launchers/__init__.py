"""Launchers: where the jobs of a study run. Processes on this machine, or jobs of a Slurm cluster.

A job is a run of a study, an attack on a run, or an evaluation of a run. Each is one command line.
"""
