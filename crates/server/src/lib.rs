//! Author and publish instances: routes, login, page serving, the JSON API, health, metrics.
