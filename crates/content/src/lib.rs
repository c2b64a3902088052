//! The content model over store and blobs; the only door to content.
