"""The probe's commands, one file each; `harness.cli.COMMANDS` names them."""
