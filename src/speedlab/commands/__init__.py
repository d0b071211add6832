"""What each `speedlab` command does with what was typed. Nothing heavy is imported before a command runs."""
