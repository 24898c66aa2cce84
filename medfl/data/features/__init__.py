"""Features of table rows: typed columns, their encoding as numbers, and their scale."""
