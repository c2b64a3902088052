//! The HTTP ground under all fronts: what author, publish, dispatcher, backup and lab share.
//!
//! Entry to this room requires a byte format or a socket; it is no drawer for helpers.
