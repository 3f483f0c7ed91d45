//! Pod and tier cgroups, v1 hybrid and v2.
