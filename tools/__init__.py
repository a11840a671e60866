"""What makes the shipped data and measures the code; not part of the packages."""
