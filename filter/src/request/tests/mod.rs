//! The parser against a literal reference, the canonical form against its promises, and both against hostile bodies.

mod agreement;
mod bodies;
mod conversations;
mod hostile;
mod reference;
