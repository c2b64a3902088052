//! Large immutable bytes kept beside the tree, named by their hash.
