//! Tasks of the project: `demo`, `test`, `spec`, `bench`.

fn main() {}
