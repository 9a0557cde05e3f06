"""Overflight's viewer: opens dumps without torch."""
