//! A GPU pod without the GPU.

fn main() {}
