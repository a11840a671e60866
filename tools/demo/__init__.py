"""What made the bundled problems and the bundled model."""
