"""The measures of each head, and the definition of every recorded number."""
