"""NVFlare backend: the messages between machines, and the code of the server and of the sites that exchanges them."""
