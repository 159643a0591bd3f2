//! What the configuration may say, for editors (JSON Schema) and for people (Markdown): both made from the types that read it,
//! so that they say what the code does. Native only.

mod node;
mod page;
mod schema;

pub use page::page;
pub use schema::schema;
