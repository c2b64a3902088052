//! The caching proxy: farms, filter, cache, balancing, flush.
