//! Tokenizers that were built into the module: `wasm-build.sh --tokenizer DIR`.
//!
//! `warmpath built-in` writes their images, and the Rust source that includes them, into a folder; the module is then built with the
//! feature `built-in` and that source.

/// A tokenizer in the module.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// The name of the folder that it came from.
    pub name: &'static str,
    /// What [`convert`](crate::prompt::convert) made of its tokenizer.json.
    pub image: &'static [u8],
    /// Its tokenizer_config.json.
    pub config: &'static [u8],
}

#[cfg(feature = "built-in")]
const ALL: &[BuiltIn] = include!(env!("WARMPATH_BUILT_IN"));
#[cfg(not(feature = "built-in"))]
const ALL: &[BuiltIn] = &[];

/// The tokenizer of this name.
///
/// # Errors
/// Says which there are.
pub fn find(name: &str) -> Result<BuiltIn, String> {
    ALL.iter().find(|built_in| built_in.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|built_in| built_in.name).collect();
        format!("not in this module, which has {names:?}; build it with wasm-build.sh --tokenizer DIR/{name}")
    })
}
