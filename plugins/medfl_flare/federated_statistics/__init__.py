"""Federated statistics between machines: the request, the site's reply, the server's side and the researcher's side."""
