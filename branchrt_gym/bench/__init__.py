"""Benches: each checks that results are equal before it times anything."""
