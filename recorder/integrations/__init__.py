"""Thin adapters, one file a framework."""
