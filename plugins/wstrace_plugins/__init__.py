"""Sources, enrichers and what they share: one package for each."""
