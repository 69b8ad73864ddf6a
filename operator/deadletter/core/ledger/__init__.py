"""The ledger: its records, and the set of settled letters that they describe."""
