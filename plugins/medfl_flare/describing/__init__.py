"""Descriptions across machines: what is asked, what a site answers, the server's and the researcher's side."""
