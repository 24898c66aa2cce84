"""Model cards of exported bundles, with evidence from which every file and score can be checked."""
