"""lamina: which layers of a language model matter, which can go, and how much of the damage can be repaired."""
