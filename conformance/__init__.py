"""Cases that every worker and every API must pass, in any language."""
