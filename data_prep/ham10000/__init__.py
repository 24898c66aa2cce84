"""HAM10000: dermoscopy."""
