"""The commands: one file each, with its options and one call into a stage of the work."""
