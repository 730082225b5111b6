"""Robustness of models: attacks of record, evaluation with a cache on disk, checks for gradient masking."""
