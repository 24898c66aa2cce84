"""Images and labels: readers, data lists, sites, phantoms."""
