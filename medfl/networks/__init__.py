"""Networks, and what methods need to know about them."""
