"""What moves messages between server and sites."""
