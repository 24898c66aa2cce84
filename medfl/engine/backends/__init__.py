"""Local backend: it runs the requests of the server in this process or in forked worker processes."""
