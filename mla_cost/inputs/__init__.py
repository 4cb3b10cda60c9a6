"""What a user states, read and checked: settings, models, devices, plan files, foreign formats."""
