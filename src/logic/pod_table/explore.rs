//! Every reachable state of small tables.
