"""What attackers in a simulated federation do: a file for each poisoning attack, beside what they have in common."""
