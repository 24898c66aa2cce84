"""The command line, one file for each command; `medfl.cli.main` lists them."""
