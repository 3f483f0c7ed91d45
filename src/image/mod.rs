//! Content store, layers, snapshots, import.
