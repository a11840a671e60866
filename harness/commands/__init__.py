"""The commands: one file each, with its options and a call into a stage of the work."""
