"""A small worker that can be told to break one rule, to prove that the cases notice."""
