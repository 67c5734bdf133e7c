"""Exporters and file formats: one package for each."""
