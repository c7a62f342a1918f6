"""Environments of BranchRT: batched rules and scalar oracles, one environment a stem."""
