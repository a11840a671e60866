"""What is measured of each head, and the definition of every number that is kept."""
