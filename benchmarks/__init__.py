"""The speed of mless relative to its alternatives, and simulations of its statistics."""
