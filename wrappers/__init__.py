"""Wrappers around ordinary Gymnasium environments."""
