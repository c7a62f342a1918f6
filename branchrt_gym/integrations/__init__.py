"""Adapters to training libraries, one module a library; importing one needs that library."""
