"""Measurements of what the compiler makes."""
