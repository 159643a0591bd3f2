//! `warmpath check`

fn main() {}
