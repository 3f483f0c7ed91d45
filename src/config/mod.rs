//! KubeletConfiguration, flags and defaults.
