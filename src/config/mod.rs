//! KubeletConfiguration, flags and defaults: everything an operator can say, as one checked value.
//!
//! - [`decode`]: YAML or JSON text → JSON value → typed value, with limits and with the path of what is wrong.
//! - [`file`]: the document named by `--config` and its known fields.
//! - [`flags`]: one table of flags that feeds the parser and the help text.
//! - [`Config`]: the result: defaults < file < flags (CONF-03), every limit with its unit.

pub mod decode;
