"""Three releases of white blood cells: Acevedo, Matek, Bodzas."""
