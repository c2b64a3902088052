"""The public dispatcher experiments and those that ask what they left open; `experiment.py` runs them."""
