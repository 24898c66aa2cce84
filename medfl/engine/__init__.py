"""Runs one step at the server and at one site, durably; knows neither MONAI nor a carrier nor a method."""
