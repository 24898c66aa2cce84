"""A drill: a site rehearses a run of its own with the real server, on made-up data, before anybody relies on it.

Site and server do what they do in a run, with the same code, messages and checks, and forget it afterwards: both keep
the drill's state in temporary folders, no run holds it and no ledger is charged.
"""
