//! Volumes: set up, tear down, subPath.
