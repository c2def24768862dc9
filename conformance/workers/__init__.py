"""Cases that every worker must pass, whatever its language. See README.md one folder up."""
