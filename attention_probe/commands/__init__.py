"""The probe's commands, one file each; `mless` finds them by an entry point."""
