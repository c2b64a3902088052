"""The pictures of the sample site, drawn from numbers."""
