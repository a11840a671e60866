"""What makes the shipped data; not part of the packages."""
