"""The paper's tables and figures: its published numbers, the ledger of our results, making missing runs."""
